//! Whole tables: one DataFusion context over folders of Parquet, within a memory limit, spilling beyond it.
//!
//! This is the one place that knows DataFusion and its runtime. Everything here gives results whose order the query
//! decides, so that no number of threads shows in them.

#[cfg(feature = "ballista")]
mod cluster;
mod ops;
mod place;
mod show;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::{SessionConfig, SessionContext};
use tokio::runtime::Runtime;

#[cfg(feature = "ballista")]
pub use cluster::{ExecutorOptions, Listen, executor, scheduler};
pub use ops::{OrderKey, quoted, shuffled};
pub use place::TableEngine;
pub use show::{json_lines, text_table};

use crate::error::Error;

/// A sort of whole documents holds some batches of them, of up to 8 MiB each; with less it finds no room to begin.
const PARTITION_BYTES: u64 = 64 << 20;

/// What a context may use.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// Memory for hash tables and sorts; beyond it they spill.
    pub memory_bytes: u64,
    /// The folder to spill to.
    pub spill: PathBuf,
    /// Threads.
    pub threads: usize,
    /// Where queries run; memory and threads are those of this process alone.
    pub engine: TableEngine,
}

/// Tables that queries can name.
pub struct Tables {
    context: SessionContext,
    runtime: Runtime,
    attempts: usize,
}

impl Tables {
    /// A context without tables.
    ///
    /// # Errors
    /// The spill folder cannot be made, or the threads cannot be started.
    pub fn new(options: &TableOptions) -> Result<Tables, Error> {
        std::fs::create_dir_all(&options.spill).map_err(|e| Error::write("create", &options.spill, e))?;
        let threads = options.threads.max(1);
        let partitions =
            threads.min(usize::try_from(options.memory_bytes / PARTITION_BYTES).unwrap_or(threads));
        let mut config = SessionConfig::new()
            .with_target_partitions(partitions.max(1))
            // Rows carry whole documents: few at once.
            .with_batch_size(1024)
            .with_sort_spill_reservation_bytes(4 << 20)
            .with_information_schema(true);
        // Texts come out as they are stored, so that stages and SQL see the same columns.
        config.options_mut().execution.parquet.schema_force_view_types = false;
        let environment = within(options.memory_bytes, &options.spill).map_err(failed)?;
        let context = options.engine.context(config, environment)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("tables")
            // For a cluster; sorts of this process need neither timers nor sockets.
            .enable_all()
            .build()
            .map_err(|e| Error::Threads { detail: e.to_string() })?;
        Ok(Tables { context, runtime, attempts: options.engine.attempts() })
    }

    /// Gives a folder of Parquet files a name.
    ///
    /// # Errors
    /// The folder holds no readable Parquet file, or files of different columns.
    pub fn register(&self, name: &str, folder: &Path) -> Result<(), Error> {
        let path = std::path::absolute(folder).map_err(|e| Error::read(folder, e))?;
        // With a slash at its end it is a folder, whatever its name.
        let path = format!("{}/", path.display());
        fathom_query::register(&self.runtime, &self.context, name, &path).map_err(failed)
    }

    /// Runs a query and hands its rows to `visit` as they come. Only queries: nothing is created or changed.
    ///
    /// # Errors
    /// A query that is wrong, more memory needed than there is where nothing can spill, or what `visit` says.
    pub fn stream(
        &self,
        sql: &str,
        visit: &mut dyn FnMut(RecordBatch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut said = Ok(());
        let ran = fathom_query::query(&self.runtime, &self.context, sql, &mut |batch| {
            said = visit(batch);
            said.is_ok()
        });
        said.and(ran.map_err(failed))
    }

    /// Runs a query and gives all its rows.
    ///
    /// # Errors
    /// As [`Tables::stream`].
    pub fn query(&self, sql: &str) -> Result<Vec<RecordBatch>, Error> {
        let mut all = Vec::new();
        self.stream(sql, &mut |batch| {
            all.push(batch);
            Ok(())
        })?;
        Ok(all)
    }
}

/// What every context of this process works within: memory that its sorts share, and a folder for the rest, as large as the
/// disk.
pub(crate) fn within(memory_bytes: u64, spill: &Path) -> Result<Arc<RuntimeEnv>, DataFusionError> {
    let disk = DiskManagerBuilder::default()
        .with_mode(DiskManagerMode::Directories(vec![spill.to_path_buf()]))
        // The engine would stop at 100 GiB.
        .with_max_temp_directory_size(u64::MAX);
    let memory = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(memory)))
        .with_disk_manager_builder(disk)
        .build_arc()
}

/// The functions that queries have besides DataFusion's own. Every process that runs or plans a query knows them.
pub(crate) fn functions() -> Vec<ScalarUDF> {
    vec![OrderKey::udf()]
}

/// The error of a query, without its backtrace and its layers.
fn failed(error: DataFusionError) -> Error {
    Error::Query { detail: error.find_root().strip_backtrace() }
}
