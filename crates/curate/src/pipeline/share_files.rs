//! Files of a stage's shares: their places, and how they are handed over.

use std::path::{Path, PathBuf};

use super::batch::Batch;
use crate::error::Error;

/// Bytes that a batch contributes to the file of its part.
pub type ShareOf<'a> = dyn Fn(&Batch) -> Result<Vec<u8>, Error> + Sync + 'a;

/// Copies a file to its final name. The original stays until all are in place, so that a run killed meanwhile need
/// not ask the file's rank again.
pub(super) fn hand_over(made: &Path, name: &Path) -> Result<(), Error> {
    let copied = || {
        std::fs::copy(made, name)?;
        std::fs::File::open(name)?.sync_all()
    };
    std::fs::hard_link(made, name).or_else(|_| copied()).map_err(|e| Error::write("create", name, e))
}

/// Folder of the share files.
pub(super) fn hidden(folder: &Path) -> PathBuf {
    folder.join(".shares")
}

pub(super) fn path(folder: &Path, number: usize) -> PathBuf {
    hidden(folder).join(format!("part-{number:05}"))
}
