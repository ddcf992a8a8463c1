//! Plans of DataFusion for a cluster: the same orders of whole tables that this process makes by itself.

use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use datafusion::dataframe::DataFrame;
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext, col};
use futures::StreamExt;
use tokio::runtime::Runtime;

use super::key_sorter::{KeySorter, VisitRow};
use super::repeat::{Visit, repeated};
use super::session::{functions, within};
use crate::error::Error;

/// How often a query is tried. An executor that is lost takes finished results with it; the cluster repeats what a later
/// stage needs, but not what only the client has yet to fetch.
const ATTEMPTS: usize = 3;

/// Rows of a batch of keys, and of one of whole documents.
const KEY_ROWS: usize = 8192;
const DOCUMENT_ROWS: usize = 1024;

/// A session whose queries run on a cluster.
pub(super) struct Plans {
    context: SessionContext,
    runtime: Runtime,
}

impl Plans {
    /// Sessions of a scheduler; `rows` is the length of a batch, and the client's own part of the work spills under `spill`.
    fn connect(scheduler: &str, rows: usize, memory_bytes: u64, spill: &Path) -> Result<Plans, Error> {
        std::fs::create_dir_all(spill).map_err(|e| Error::write("create", spill, e))?;
        let mut config = SessionConfig::new().with_batch_size(rows);
        // Texts come out as they are stored.
        config.options_mut().execution.parquet.schema_force_view_types = false;
        let environment = within(memory_bytes, spill).map_err(failed)?;
        let context = super::cluster::connect(scheduler, config, environment)?;
        functions().into_iter().for_each(|function| context.register_udf(function));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("tables")
            .enable_all()
            .build()
            .map_err(|e| Error::Threads { detail: e.to_string() })?;
        Ok(Plans { context, runtime })
    }

    fn run(
        &self,
        plan: impl AsyncFnOnce(&SessionContext) -> PlanResult<DataFrame>,
        visit: &mut Visit<'_>,
    ) -> Result<(), Error> {
        self.runtime.block_on(async {
            let mut rows =
                plan(&self.context).await.map_err(failed)?.execute_stream().await.map_err(failed)?;
            while let Some(batch) = rows.next().await {
                visit(batch.map_err(failed)?)?;
            }
            Ok(())
        })
    }
}

/// Sorts of keys on the cluster of this scheduler.
pub(super) fn keys(scheduler: &str, memory_bytes: u64, spill: &Path) -> Result<Plans, Error> {
    Plans::connect(scheduler, KEY_ROWS, memory_bytes, spill)
}

impl KeySorter for Plans {
    fn sorted(&self, folder: &Path, names: &[&str], visit: &mut VisitRow<'_>) -> Result<(), Error> {
        let path = folder_url(folder)?;
        let (keys, _) = names.split_at(names.len() - 1);
        let order: Vec<_> = keys.iter().map(|key| col(*key).sort(true, false)).collect();
        let plan = async |context: &SessionContext| {
            context.read_parquet(&path, ParquetReadOptions::default()).await?.sort(order)
        };
        let mut row = Vec::with_capacity(names.len());
        self.run(plan, &mut |batch| {
            let columns: Option<Vec<_>> =
                batch.columns().iter().map(|column| column.as_primitive_opt::<UInt64Type>()).collect();
            let columns =
                columns.ok_or_else(|| Error::Query { detail: "keys are not 64-bit numbers".into() })?;
            for number in 0..batch.num_rows() {
                row.clear();
                row.extend(columns.iter().map(|column| column.value(number)));
                visit(&row)?;
            }
            Ok(())
        })
    }

    fn attempts(&self) -> usize {
        ATTEMPTS
    }
}

/// All rows of a table in an order that only `seed` and their ids decide, by the cluster of this scheduler. Ids are unique, so
/// the order is whole.
///
/// # Errors
/// A cluster that does not answer or gives up, or what `visit` says.
pub(crate) fn shuffled(
    (scheduler, folder): (&str, &Path),
    seed: u64,
    (memory_bytes, spill): (u64, &Path),
    visit: &mut Visit<'_>,
) -> Result<(), Error> {
    let plans = Plans::connect(scheduler, DOCUMENT_ROWS, memory_bytes, spill)?;
    let path = folder_url(folder)?;
    plans
        .runtime
        .block_on(plans.context.register_parquet("documents", &path, ParquetReadOptions::default()))
        .map_err(failed)?;
    // SQL's integers are signed; the bits are the same.
    let seed = seed as i64;
    let sql = format!("SELECT * FROM documents ORDER BY order_key(id, {seed}), id");
    let mut query =
        |visit: &mut Visit<'_>| plans.run(async |context: &SessionContext| context.sql(&sql).await, visit);
    repeated(ATTEMPTS, &mut query, visit)
}

fn folder_url(folder: &Path) -> Result<String, Error> {
    let path = std::path::absolute(folder).map_err(|e| Error::read(folder, e))?;
    // With a slash at its end it is a folder, whatever its name.
    Ok(format!("{}/", path.display()))
}

/// The error of a query, without its backtrace and its layers.
fn failed(error: DataFusionError) -> Error {
    Error::Query { detail: error.find_root().strip_backtrace() }
}
