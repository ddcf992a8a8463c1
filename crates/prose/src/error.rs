//! What stops before the first text: a model or table that cannot be read, a setting that cannot be.

use std::path::{Path, PathBuf};

/// Everything that keeps a piece from being made. Texts are never an error: they are refused with a reason.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that was named could not be opened or read.
    #[error("cannot read {}: {source}; check that the path exists and may be read", path.display())]
    Read {
        /// The path as it was given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that was named is not what it should be.
    #[error("{}: not a readable {kind} file: {detail}", path.display())]
    BadFile {
        /// The path as it was given.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What the decoder said.
        detail: String,
    },
    /// A file could not be written.
    #[error("cannot {action} {}: {source}", path.display())]
    Write {
        /// What was tried: `create`, `write`, `rename`, `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An option that cannot be.
    #[error("{piece}: `{key}` is {found}; {advice}")]
    Option {
        /// Whose option.
        piece: &'static str,
        /// Its key.
        key: String,
        /// Its value, in words.
        found: String,
        /// What it may be.
        advice: String,
    },
}

impl Error {
    /// A failure to read `path`.
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Error {
        Error::Read { path: path.to_path_buf(), source }
    }
    /// A failure to write `path`.
    pub(crate) fn write(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Write { action, path: path.to_path_buf(), source }
    }
}
