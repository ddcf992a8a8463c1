//! Checks of output files at paths that the caller chooses.

use std::fs::{FileType, symlink_metadata};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::error::{Result, refuse};

/// Refuses a path that exists and is not a regular file: a rename would replace a device node, and a write would follow
/// a link. Called before any work is done.
///
/// # Errors
/// Names the kind of thing found there.
pub fn regular(path: &Path) -> Result<()> {
    let Ok(found) = symlink_metadata(path) else { return Ok(()) };
    match kind(found.file_type()) {
        None => Ok(()),
        Some(kind) => {
            refuse!("{} is {kind}; only a regular file is replaced, so name another path", path.display())
        }
    }
}

/// Describes a file type; `None` for a regular file.
fn kind(found: FileType) -> Option<&'static str> {
    let kinds = [
        (found.is_dir(), "a folder"),
        (found.is_symlink(), "a symbolic link"),
        (found.is_char_device(), "a character device"),
        (found.is_block_device(), "a block device"),
        (found.is_fifo(), "a pipe"),
        (found.is_socket(), "a socket"),
    ];
    kinds.into_iter().find_map(|(is, name)| is.then_some(name))
}
