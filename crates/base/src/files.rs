//! Safe access to files in folders that others may write to, where a symbolic link could redirect a write to any of
//! the user's files.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes opening fail if the last path component is a symbolic link.
pub fn no_follow(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(libc::O_NOFOLLOW)
}

/// Replaces the system's message for a symbolic link by a clear one.
pub fn plain(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => Error::new(
            ErrorKind::InvalidInput,
            "it is a symbolic link, which is not followed here; put the file itself in its place, or remove it",
        ),
        _ => error,
    }
}

/// Creates a file, replacing what exists; a symbolic link is removed.
///
/// # Errors
/// Errors of the system.
pub fn create_replacing(path: &Path) -> Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).open(path)
}

/// Overwrites or creates a small file, refusing symbolic links.
///
/// # Errors
/// Errors of the system; a symbolic link is reported clearly.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut options = File::options();
    let opened = no_follow(options.write(true).create(true).truncate(true)).open(path);
    opened.and_then(|mut file| file.write_all(bytes)).map_err(plain)
}
