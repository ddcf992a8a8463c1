//! Whole tables, within a limit on memory, spilling beyond it: [`Tables`] answers queries over folders of Parquet, and a
//! [`TableEngine`] puts tables in order for the stages that need it, in this process or on a cluster. Orders are by keys and
//! ids, so that no number of threads, limit on memory or engine shows in the results.

#[cfg(feature = "ballista")]
mod cluster;
mod key_sorter;
mod place;
#[cfg(feature = "ballista")]
mod plans;
pub(crate) mod ranges;
#[cfg(any(test, feature = "ballista"))]
mod repeat;
#[cfg(feature = "ballista")]
mod session;
mod show;
mod sort;

use std::path::{Path, PathBuf};

use fathom_query::Database;
use serde_json::Value;

#[cfg(feature = "ballista")]
pub use cluster::{ExecutorOptions, Listen, executor, scheduler};
pub(crate) use key_sorter::KeySorter;
pub use place::TableEngine;
#[cfg(feature = "ballista")]
pub(crate) use plans::shuffled;
pub use show::{json_line, text_table};

use crate::error::Error;

/// Limits of queries.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// Memory for sorts and groups; beyond it they spill.
    pub memory_bytes: u64,
    /// The folder to spill to.
    pub spill: PathBuf,
}

/// Tables that queries can name.
pub struct Tables(Database);

/// Takes the names of an answer's columns and a row; an error ends the query.
pub type VisitAnswer<'a> = dyn FnMut(&[String], &[Value]) -> Result<(), Error> + 'a;

/// All rows of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The names of its columns.
    pub names: Vec<String>,
    /// Its rows, a value a column.
    pub rows: Vec<Vec<Value>>,
}

impl Tables {
    /// A database without tables.
    ///
    /// # Errors
    /// The spill folder cannot be made or used.
    pub fn new(options: &TableOptions) -> Result<Tables, Error> {
        std::fs::create_dir_all(&options.spill).map_err(|e| Error::write("create", &options.spill, e))?;
        Database::new(options.memory_bytes, &options.spill).map(Tables).map_err(failed)
    }

    /// Gives a folder of Parquet files a name.
    ///
    /// # Errors
    /// The folder holds no readable Parquet file, or files of different columns.
    pub fn register(&mut self, name: &str, folder: &Path) -> Result<(), Error> {
        self.0.register(name, folder).map_err(failed)
    }

    /// Runs a query and hands its rows to `visit` with the names of their columns as they come. Only queries: nothing is
    /// created or changed.
    ///
    /// # Errors
    /// A query that is wrong, a disk that is full, or what `visit` says.
    pub fn stream(&self, sql: &str, visit: &mut VisitAnswer<'_>) -> Result<(), Error> {
        let mut said = Ok(());
        let ran = self.0.query(sql, &mut |names, row| {
            said = visit(names, row);
            said.is_ok()
        });
        said.and(ran.map_err(failed))
    }

    /// Runs a query and gives all its rows.
    ///
    /// # Errors
    /// Those of [`Tables::stream`].
    pub fn query(&self, sql: &str) -> Result<Answer, Error> {
        let mut answer = Answer::default();
        self.stream(sql, &mut |names, row| {
            if answer.names.is_empty() {
                answer.names = names.to_vec();
            }
            answer.rows.push(row.to_vec());
            Ok(())
        })?;
        Ok(answer)
    }
}

fn failed(error: fathom_query::Error) -> Error {
    Error::Query { detail: error.to_string() }
}
