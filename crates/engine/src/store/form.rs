//! Form of stored files and folders.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// First bytes of a file, including the version of its format.
pub(super) const MAGIC: &[u8; 8] = b"FTHMPG01";
/// Suffix of an unfinished file.
pub(super) const UNFINISHED: &str = ".part";

/// Creates a folder with access for its owner only.
pub(super) fn private(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Ignores the error of removing a missing file.
pub(super) fn gone(result: std::io::Result<()>) -> std::io::Result<()> {
    result.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
