//! Atomic, durable file writes: a file is complete or absent, whenever the machine stops. Special files such as
//! devices, and the targets of links, are never written.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// Writes a small file atomically: temporary name, flush to disk, rename.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let temporary = temporary_of(path);
    let write = || {
        let mut file = create_new(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    refuse_special(path)?;
    write().map_err(|e| Error::write("write", &temporary, e))?;
    rename(&temporary, path)
}

/// Creates the file at a temporary name, replacing a leftover of an earlier run.
pub(crate) fn create(temporary: &Path) -> Result<File, Error> {
    refuse_special(temporary)?;
    create_new(temporary).map_err(|e| Error::write("create", temporary, e))
}

/// An existing link is removed, not followed.
fn create_new(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::options().write(true).create_new(true).open(path),
    }
}

/// Opens a log file of this process for appending.
pub(crate) fn append(path: &Path) -> Result<File, Error> {
    let refused = |what| Err(Error::write("append to", path, io::Error::other(what)));
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => refused("it is a symbolic link; remove it"),
        Ok(there) if !there.is_file() => refused(NOT_A_FILE),
        _ => File::options().create(true).append(true).open(path).map_err(|e| Error::write("open", path, e)),
    }
}

const NOT_A_FILE: &str =
    "a folder, device, pipe or socket is there, not a file; name another path, or remove it";

/// Refuses to replace anything but a regular file or a link; replacing a link leaves its target alone.
pub(crate) fn refuse_special(path: &Path) -> Result<(), Error> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() && !there.is_symlink() => {
            Err(Error::write("replace", path, io::Error::other(NOT_A_FILE)))
        }
        _ => Ok(()),
    }
}

/// Renames a finished file and makes the rename durable.
pub(crate) fn rename(temporary: &Path, path: &Path) -> Result<(), Error> {
    refuse_special(path)?;
    std::fs::rename(temporary, path).map_err(|e| Error::write("rename", path, e))?;
    sync_folder_of(path)
}

/// Durably removes a file if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Ok(()) => sync_folder_of(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::write("remove", path, error)),
    }
}

/// Saves a value as JSON.
pub(crate) fn save<T: Serialize>(path: &Path, account: &T) -> Result<(), Error> {
    let mut text = serde_json::to_vec_pretty(account).map_err(|e| Error::write("write", path, e.into()))?;
    text.push(b'\n');
    write_whole(path, &text)
}

/// Loads a JSON value; `None` if it is missing or torn, since both are repaired by saving it again.
pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Temporary name of a file being written; hidden, so that a table listing does not take it for a part.
pub(crate) fn temporary_of(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.tmp"))
}

fn sync_folder_of(path: &Path) -> Result<(), Error> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| Error::write("flush", folder, e))
}
