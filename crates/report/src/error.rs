//! The error enum of this crate.

use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong when a report is made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log could not be read.
    #[error(transparent)]
    Base(#[from] fathom_base::Error),
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn write(path: &Path, source: std::io::Error) -> Error {
        Error::Write { path: path.to_path_buf(), source }
    }
}
