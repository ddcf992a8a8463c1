//! Files of a store, open. The index and the facts are mapped, through a crate that holds a shared advisory lock on the file while
//! it is. The tokens are read: a map of a file that somebody truncates ends the process without a word (SIGBUS), a read says so.

use crate::error::{OrIo, Result};
use mmap_guard::FileData;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The tokens of a store, read as they are wanted.
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

    /// Its size when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Some of its bytes; `path` is for messages.
    pub(super) fn read(&self, range: Range<usize>, path: &Path) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        let read = self.file.read_exact_at(&mut bytes, range.start as u64);
        read.map_err(|error| if error.kind() == ErrorKind::UnexpectedEof { truncated() } else { error })
            .or_io("read", path)?;
        Ok(bytes)
    }
}

/// What a file that became shorter is refused with.
fn truncated() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "it was truncated while it was in use")
}

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

    /// Refuses a file that has become shorter than its map, which may not be looked at then.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let Some(FileData::Mapped(map, file, ..)) = &self.0 else { return Ok(()) };
        let bytes = file.metadata().or_io("read", path)?.len();
        if bytes < map.len() as u64 { Err(truncated()).or_io("read", path) } else { Ok(()) }
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}
