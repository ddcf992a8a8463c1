//! The one error enum of this crate. Every message says what was wrong, where, and what to do.

use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of configurations and weight files.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// The operating system refused to read, write or create a file.
    #[error(transparent)]
    Io(#[from] fathom_base::IoError),
    /// A file as a whole is not what it should be.
    #[error("{}: {what}", file.display())]
    File {
        file: PathBuf,
        /// The problem, and its remedy.
        what: String,
    },
    /// One tensor of a file is missing, superfluous or mis-shaped.
    #[error("{}: tensor `{tensor}` {what}", file.display())]
    Tensor {
        file: PathBuf,
        tensor: String,
        /// The problem, and its remedy.
        what: String,
    },
    /// The disk behind weights failed.
    #[error(transparent)]
    Spill(fathom_tensor::spill::Error),
    /// A key of `config.json` is missing, unknown, or has a value that is not supported.
    #[error("{}: key `{key}` {what}", file.display())]
    Config {
        file: PathBuf,
        /// The key, dotted if nested.
        key: String,
        /// The problem, and its remedy.
        what: String,
    },
}

impl Error {
    pub(crate) fn file(file: &Path, what: impl Into<String>) -> Error {
        Error::File { file: file.to_path_buf(), what: what.into() }
    }

    pub(crate) fn tensor(file: &Path, tensor: &str, what: impl Into<String>) -> Error {
        Error::Tensor { file: file.to_path_buf(), tensor: tensor.to_string(), what: what.into() }
    }

    pub(crate) fn config(file: &Path, key: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Config { file: file.to_path_buf(), key: key.into(), what: what.into() }
    }

    /// Builds the error for `map_err` on a system call.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        fathom_base::IoError::at(action, path)
    }
}
