//! Open files of a store. Index and metadata are memory-mapped, by a crate that holds a shared advisory lock on the
//! file meanwhile. Tokens are read instead: truncating a mapped file kills the process silently (SIGBUS), while a
//! read returns an error.

use crate::error::{OrIo, Result};
use mmap_guard::FileData;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Tokens of a store, read on demand.
#[derive(Debug)]
pub(super) struct Tokens {
    file: File,
    bytes: u64,
}

impl Tokens {
    /// Opens a file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).or_io("open", path)?;
        let bytes = file.metadata().or_io("open", path)?.len();
        Ok(Self { file, bytes })
    }

    /// Size when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads a range of bytes; `path` is for messages.
    pub(super) fn read(&self, range: Range<usize>, path: &Path) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        let read = self.file.read_exact_at(&mut bytes, range.start as u64);
        read.map_err(|error| if error.kind() == ErrorKind::UnexpectedEof { truncated() } else { error })
            .or_io("read", path)?;
        Ok(bytes)
    }
}

/// Error for a file that has become shorter.
fn truncated() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "it was truncated while it was in use")
}

/// Bytes of a file, mapped read-only; `None` for an empty file.
#[derive(Debug)]
pub(super) struct Map(Option<FileData>);

impl Map {
    /// Maps a file.
    ///
    /// On a file system without locks (such as some cluster file systems) the file is read into memory instead.
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

    /// Rejects a file that has become shorter than its mapping, which must not be accessed then.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let Some(FileData::Mapped(map, file, ..)) = &self.0 else { return Ok(()) };
        let bytes = file.metadata().or_io("read", path)?.len();
        if bytes < map.len() as u64 { Err(truncated()).or_io("read", path) } else { Ok(()) }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}
