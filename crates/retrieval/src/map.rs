//! Bytes of a file: small files are read, large ones mapped, by a crate that holds a shared advisory lock meanwhile.

use std::io::ErrorKind;
use std::path::Path;

use mmap_guard::FileData;

use crate::error::{Error, Result};

/// Largest file that is read instead of mapped: its copy takes less time than a mapping.
const SMALL_BYTES: u64 = 256 << 10;

/// Opens a file.
///
/// # Errors
/// Errors of the system.
pub(crate) fn open(path: &Path) -> Result<FileData> {
    let read = || std::fs::read(path).map(FileData::Loaded).map_err(|error| Error::io("read", path, error));
    let size = std::fs::metadata(path).map_err(|error| Error::io("read", path, error))?.len();
    if size <= SMALL_BYTES {
        return read();
    }
    match mmap_guard::map_file(path) {
        // Some file systems of clusters have no locks.
        Err(error) if error.kind() == ErrorKind::Unsupported => read(),
        mapped => mapped.map_err(|error| Error::io("map", path, error)),
    }
}
