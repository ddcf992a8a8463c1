//! The calls into DataFusion that plan and wait, in a crate of their own because of their compile time.
//!
//! A crate that awaits an async function of a library compiles its body again, with everything generic that it calls: half
//! of the time to compile `fathom-curate` went into DataFusion's SQL planner. So these calls are in this crate, which is
//! compiled without optimisation (see the workspace's `Cargo.toml`). It neither inspects nor copies the rows that pass
//! through it.
//!
//! This crate knows nothing of documents.

use datafusion::arrow::array::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::prelude::{ParquetReadOptions, SQLOptions, SessionContext, col};
use futures::StreamExt;
use tokio::runtime::Runtime;

/// Takes rows as they come; false ends the query.
pub type Visit<'a> = dyn FnMut(RecordBatch) -> bool + 'a;

/// Gives a folder of Parquet files a name. Its path ends with `/`.
///
/// # Errors
/// The folder holds no readable Parquet file, or files of different columns.
pub fn register(runtime: &Runtime, context: &SessionContext, name: &str, path: &str) -> Result<()> {
    runtime.block_on(context.register_parquet(name, path, ParquetReadOptions::default()))
}

/// Runs a query in SQL that creates and changes nothing.
///
/// # Errors
/// A query that is wrong or not allowed, more memory needed than there is where nothing can spill.
pub fn query(runtime: &Runtime, context: &SessionContext, sql: &str, visit: &mut Visit<'_>) -> Result<()> {
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false);
    runtime.block_on(async { pass(context.sql_with_options(sql, options).await?, visit).await })
}

/// Reads a folder of Parquet files, whose path ends with `/`, in ascending order of the columns `keys`.
///
/// # Errors
/// The folder cannot be read, or the sort runs out of disk.
pub fn sorted(
    runtime: &Runtime,
    context: &SessionContext,
    path: &str,
    keys: &[&str],
    visit: &mut Visit<'_>,
) -> Result<()> {
    let keys = keys.iter().map(|key| col(*key).sort(true, false)).collect();
    runtime.block_on(async {
        let rows = context.read_parquet(path, ParquetReadOptions::default()).await?;
        pass(rows.sort(keys)?, visit).await
    })
}

async fn pass(frame: DataFrame, visit: &mut Visit<'_>) -> Result<()> {
    let mut rows = frame.execute_stream().await?;
    while let Some(batch) = rows.next().await {
        if !visit(batch?) {
            break;
        }
    }
    Ok(())
}
