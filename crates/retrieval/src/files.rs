//! Files of an index: complete or absent, whenever the process or the machine stops.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Ending of files that are being written.
const TEMPORARY: &str = "tmp";

/// Publishes a file by rename, after its bytes are on the disk.
pub(crate) fn publish(path: &Path, bytes: &[&[u8]]) -> Result<()> {
    written(path, bytes, File::sync_data)
}

/// Replaces a file by rename. After a crash of the machine it may lack some of its bytes, which its hash reveals.
pub(crate) fn replace(path: &Path, bytes: &[&[u8]]) -> Result<()> {
    written(path, bytes, |_| Ok(()))
}

fn written(path: &Path, bytes: &[&[u8]], sync: fn(&File) -> io::Result<()>) -> Result<()> {
    let temporary = temporary(path);
    let write = || -> io::Result<()> {
        let mut file = fathom_base::files::create_replacing(&temporary)?;
        bytes.iter().try_for_each(|part| file.write_all(part))?;
        sync(&file)
    };
    write().map_err(|error| Error::io("write", &temporary, error))?;
    fs::rename(&temporary, path).map_err(|error| Error::io("rename", &temporary, error))
}

/// Makes the renames in a folder durable.
pub(crate) fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| Error::io("flush", folder, error))
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".");
    name.push(TEMPORARY);
    name.into()
}

/// Removes the files of a folder that `keep` does not name.
pub(crate) fn clean(folder: &Path, keep: impl Fn(&str) -> bool) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| Error::io("read", folder, error))?,
    };
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("read", folder, error))?;
        if !keep(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path()).map_err(|error| Error::io("remove", &entry.path(), error))?;
        }
    }
    Ok(())
}
