//! The error enum of this crate. Every message states the problem, its place and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of indexes and of questions to them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read, write or create a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Attempted action: `read`, `write`, `create`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// System error.
        source: io::Error,
    },
    /// The folder is not an index.
    #[error("{}: not an index: {why}; `fathom index PATHS.. {}` writes one", path.display(), path.display())]
    NotAnIndex {
        /// The folder.
        path: PathBuf,
        /// Finding that shows it.
        why: String,
    },
    /// A file of an index does not have the bytes that were written.
    #[error("{}: damaged: {why}; remove the folder of the index and write it again with `fathom index`", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Finding that shows it.
        why: String,
    },
    /// Another process writes the index.
    #[error("{}: {holder} is writing this index; wait for its end", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Description of the process.
        holder: String,
    },
    /// An option or a question cannot be fulfilled; the message says why and what to do.
    #[error("{0}")]
    Refused(String),
    /// Vectors were requested of an index that has others or none.
    #[error("{}: {why}", path.display())]
    Encoder {
        /// The index.
        path: PathBuf,
        /// Difference, and the remedy.
        why: String,
    },
    /// A store of vectors outside the folder of an index.
    #[error("{store}: {why}")]
    Store {
        /// Its address.
        store: String,
        /// Problem, and the remedy.
        why: String,
    },
    /// From an encoder or a reranker.
    #[error(transparent)]
    Base(#[from] fathom_base::Error),
    /// From the detectors of personal data and the extractors.
    #[error(transparent)]
    Prose(#[from] fathom_prose::Error),
}

impl Error {
    /// A failed action on a file.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_path_buf(), source }
    }

    /// A damaged file.
    pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_path_buf(), why: why.into() }
    }
}
