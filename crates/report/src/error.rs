//! The error enum of this crate.

use std::path::{Path, PathBuf};

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of making a report.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// The log could not be read.
    #[error(transparent)]
    Base(#[from] fathom_base::Error),
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Error {
        Error::Read { path: path.to_path_buf(), source }
    }

    pub(crate) fn write(path: &Path, source: std::io::Error) -> Error {
        Error::Write { path: path.to_path_buf(), source }
    }
}
