//! Read-only memory maps, through a crate that holds a shared advisory lock on the file while it is mapped.

use crate::error::{OrIo, Result};
use mmap_guard::FileData;
use std::path::Path;

/// The bytes of a file, mapped read-only. Nothing at all is kept for an empty file.
#[derive(Debug)]
pub(super) struct Map(Option<FileData>);

impl Map {
    /// Maps a file.
    ///
    /// On a file system without locks (some cluster ones) the file is read into memory instead.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let size = std::fs::metadata(path).or_io("open", path)?.len();
        if size == 0 {
            return Ok(Self(None));
        }
        match mmap_guard::map_file(path) {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                Ok(Self(Some(FileData::Loaded(std::fs::read(path).or_io("read", path)?))))
            }
            mapped => Ok(Self(Some(mapped.or_io("map", path)?))),
        }
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}
