//! Errors before the first text: unreadable models or tables, and invalid settings.

use std::path::{Path, PathBuf};

/// Errors in constructing a component. Texts never cause errors; they are rejected with a reason.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// A named file could not be opened or read.
    #[error("cannot read {}: {source}; check that the path exists and may be read", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A named file does not have the expected format.
    #[error("{}: not a readable {kind} file: {detail}", path.display())]
    BadFile { path: PathBuf, kind: &'static str, detail: String },
    /// A file could not be written.
    #[error("cannot {action} {}: {source}", path.display())]
    Write {
        /// Attempted action: `create`, `write`, `rename`, `remove`.
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// An option is invalid.
    #[error("{piece}: `{key}` is {found}; {advice}")]
    Option { piece: &'static str, key: String, found: String, advice: String },
}

impl Error {
    /// Failure to read `path`.
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Error {
        Error::Read { path: path.to_path_buf(), source }
    }
    /// Failure to write `path`.
    pub(crate) fn write(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Write { action, path: path.to_path_buf(), source }
    }
}
