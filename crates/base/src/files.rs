//! Files in folders that others may write to: a symbolic link there could lead a write to any file of the user's.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes a file be opened only if its last part is no symbolic link.
pub fn no_follow(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(libc::O_NOFOLLOW)
}

/// The system's word for a link that is not followed, plainly.
pub fn plain(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => Error::new(
            ErrorKind::InvalidInput,
            "it is a symbolic link, which is not followed here; put the file itself in its place, or remove it",
        ),
        _ => error,
    }
}

/// Creates a file in the place of what is there: a symbolic link is removed.
///
/// # Errors
/// The system's.
pub fn create_replacing(path: &Path) -> Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).open(path)
}

/// Overwrites a small file, which is no symbolic link, or creates it.
///
/// # Errors
/// The system's; a link, plainly.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut options = File::options();
    let opened = no_follow(options.write(true).create(true).truncate(true)).open(path);
    opened.and_then(|mut file| file.write_all(bytes)).map_err(plain)
}
