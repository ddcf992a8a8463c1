//! Errors of a spill file.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use super::tag::Tag;

/// Shorthand for results of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of a spill file. Cheap to clone: after the first failure every later call returns the same error.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// An invalid option.
    #[error("spill: {key} is {value}: {message}")]
    Refused {
        /// The field of [`super::Options`].
        key: &'static str,
        value: String,
        message: &'static str,
    },
    /// The machine keeps data that host threads cannot move.
    #[error(
        "spill: the machine `{machine}` gives no copies to the host, so nothing of it can be placed on disk"
    )]
    NoCopies { machine: String },
    /// The file could not be made, sized or tried.
    #[error("cannot {action} a spill file of {bytes} bytes in {}: {source}; {remedy}", folder.display())]
    Open { action: &'static str, folder: PathBuf, bytes: u64, source: Arc<io::Error>, remedy: &'static str },
    /// The file has no room for a value; no byte has moved.
    #[error(
        "{file} has no room for {tag}: {bytes} bytes asked, {live} of {capacity} in use and no gap of that size; \
         raise the file's capacity or place less on disk"
    )]
    Full {
        file: String,
        tag: Tag,
        /// Bytes requested, in whole pages.
        bytes: u64,
        live: u64,
        capacity: u64,
    },
    /// A transfer failed.
    #[error("cannot {action} {bytes} bytes at offset {offset} of {file}, for {tag}: {source}; {remedy}")]
    Io {
        /// `read` or `write`.
        action: &'static str,
        file: String,
        offset: u64,
        bytes: u64,
        tag: Tag,
        source: Arc<io::Error>,
        remedy: &'static str,
    },
    /// A copy or codec panicked in a worker.
    #[error("spilling {tag} to {file} failed: {message}; this is a fault of the program, please report it")]
    Worker { file: String, tag: Tag, message: String },
}

impl Error {
    pub(super) fn refused(key: &'static str, value: impl ToString, message: &'static str) -> Error {
        Error::Refused { key, value: value.to_string(), message }
    }
}

/// Remedy for a system error.
pub(super) fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free space there, choose another folder, or place less on disk"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => "make the folder or choose another",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "choose a folder that this user may write to"
        }
        ErrorKind::FileTooLarge => {
            "choose a file system that takes files of this size, or a smaller capacity"
        }
        ErrorKind::UnexpectedEof => "something else has cut the file short; choose a folder of its own",
        _ => "the device reports a fault: see the kernel's log, or choose a folder on another device",
    }
}
