//! Errors, and quoted names.

/// Why there is no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite refused or gave up.
    #[error("{0}")]
    Query(String),
    /// A statement that would create or change something.
    #[error("only queries are run, no DDL and no changes of data")]
    Change,
    /// More than one statement, or none.
    #[error("one query at a time is run, without another statement before or behind it")]
    Several,
    /// A folder that is no table.
    #[error("{0}")]
    Folder(String),
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        match error {
            rusqlite::Error::SqliteFailure(_, Some(detail)) => Error::Query(detail),
            rusqlite::Error::SqlInputError { msg, .. } => Error::Query(msg),
            other => Error::Query(other.to_string()),
        }
    }
}

/// A name as SQL quotes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
