//! SQL over folders of Parquet files, by SQLite.
//!
//! A folder is a virtual table: rows are read as a query asks for them, and only the columns that it names. Sorts, groups
//! and distinct values beyond the limit on memory lie in a folder for spills. SQLite scans a virtual table once for each row
//! of the table that it is joined with, so the columns of a join are copied into temporary tables, which get an index.
//!
//! This crate knows nothing of documents.

mod copies;
mod error;
mod folder;
mod functions;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::config::DbConfig;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection, Statement};
use serde_json::Value;

use copies::Columns;
pub use error::Error;

/// Takes a row of the answer under the names of its columns; false ends the query.
pub type Visit<'a> = dyn FnMut(&[String], &[Value]) -> bool + 'a;

/// Access that the authorizer lets pass and notes.
#[derive(Default)]
struct Watch {
    /// While this crate prepares its own statements.
    own: AtomicBool,
    changes: AtomicBool,
    /// (table, column) that the statement reads.
    reads: Mutex<BTreeSet<(String, String)>>,
}

impl Watch {
    fn reads(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, context: &AuthContext<'_>) -> Authorization {
        if self.own.load(Ordering::Relaxed) {
            return Authorization::Allow;
        }
        match context.action {
            AuthAction::Read { table_name, column_name } => {
                self.reads().insert((table_name.to_owned(), column_name.to_owned()));
                Authorization::Allow
            }
            AuthAction::Select | AuthAction::Function { .. } | AuthAction::Recursive => Authorization::Allow,
            AuthAction::Pragma { pragma_name: "table_info" | "table_xinfo" | "function_list", .. } => {
                Authorization::Allow
            }
            _ => {
                self.changes.store(true, Ordering::Relaxed);
                Authorization::Deny
            }
        }
    }
}

/// Folders of Parquet files that queries can name.
pub struct Database {
    connection: Connection,
    watch: Arc<Watch>,
    tables: Vec<Columns>,
}

impl Database {
    /// A database without tables. Sorts and temporary tables beyond `memory_bytes` lie in `spill`, which exists.
    ///
    /// # Errors
    /// SQLite cannot use the folder.
    pub fn new(memory_bytes: u64, spill: &Path) -> Result<Database, Error> {
        let mut connection = Connection::open_in_memory()?;
        let kibibytes =
            i64::try_from(memory_bytes >> 10).unwrap_or(i64::MAX).clamp(1024, i64::from(i32::MAX));
        connection.pragma_update(None, "temp_store", "FILE")?;
        connection.pragma_update(None, "temp_store_directory", spill.to_string_lossy())?;
        // A negative number counts kibibytes.
        connection.pragma_update(Some("main"), "cache_size", -kibibytes / 2)?;
        connection.pragma_update(Some("temp"), "cache_size", -kibibytes / 2)?;
        connection.pragma_update(None, "case_sensitive_like", true)?;
        // A name in double quotes that no column has is an error, not a text.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        functions::register(&connection)?;
        let watch = Arc::new(Watch::default());
        let judge = watch.clone();
        connection.authorizer(Some(move |context: AuthContext<'_>| judge.judge(&context)))?;
        Ok(Database { connection, watch, tables: Vec::new() })
    }

    /// Gives a folder of Parquet files a name.
    ///
    /// # Errors
    /// The folder holds no readable Parquet file, files of different columns, or columns that are not plain values.
    pub fn register(&mut self, name: &str, folder: &Path) -> Result<(), Error> {
        let columns = folder::register(&self.connection, name, folder)?;
        self.tables.push(Columns { table: name.to_owned(), columns });
        Ok(())
    }

    /// Runs a query, which creates and changes nothing.
    ///
    /// # Errors
    /// A query that is wrong or not allowed, or a disk that is full.
    pub fn query(&self, sql: &str, visit: &mut Visit<'_>) -> Result<(), Error> {
        self.watch.reads().clear();
        drop(self.only(sql)?);
        let reads = std::mem::take(&mut *self.watch.reads());
        let copied = self.as_ourselves(|| copies::make(&self.connection, sql, &self.tables, &reads))?;
        let ran = self.only(sql).and_then(|mut query| answer(&mut query, visit));
        self.as_ourselves(|| copies::drop(&self.connection, &copied))?;
        ran
    }

    /// The one statement that `sql` is.
    fn only<'a>(&'a self, sql: &'a str) -> Result<Statement<'a>, Error> {
        self.watch.changes.store(false, Ordering::Relaxed);
        let mut statements = Batch::new(&self.connection, sql);
        let first = statements.next();
        // A virtual table that cannot be written refuses before the authorizer is asked.
        let refused = first.as_ref().is_err_and(|error| error.to_string().contains(" may not be "));
        if refused || self.watch.changes.load(Ordering::Relaxed) {
            return Err(Error::Change);
        }
        match (first?, statements.next()) {
            (Some(statement), Ok(None)) => Ok(statement),
            _ => Err(Error::Several),
        }
    }

    fn as_ourselves<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.watch.own.store(true, Ordering::Relaxed);
        let done = work();
        self.watch.own.store(false, Ordering::Relaxed);
        done
    }
}

fn answer(query: &mut Statement<'_>, visit: &mut Visit<'_>) -> Result<(), Error> {
    let names: Vec<String> = query.column_names().map(str::to_owned).collect();
    // A copy's columns are declared by what SQLite makes of the table's: numbers, for truth values.
    let is_truth = |declared: Option<&str>| matches!(declared, Some(folder::BOOLEAN | "NUM"));
    let truths: Vec<bool> = query.columns().map(|column| is_truth(column.decl_type())).collect();
    let mut values = Vec::with_capacity(names.len());
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        values.clear();
        for (column, truth) in truths.iter().enumerate() {
            values.push(match row.get_ref(column)? {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(number) if *truth => Value::Bool(number != 0),
                ValueRef::Integer(number) => number.into(),
                ValueRef::Real(number) => number.into(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned().into(),
                ValueRef::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
            });
        }
        if !visit(&names, &values) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
