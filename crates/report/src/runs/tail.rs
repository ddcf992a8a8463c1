//! A log that grows, read piece by piece.

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Bytes that are read at once.
const BLOCK: usize = 1 << 20;
/// Longest line that is read; longer ones are skipped.
const LONGEST: usize = 64 << 20;

/// A reader of whole lines that remembers where it was.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    offset: u64,
    /// The beginning of a line whose end is not there yet.
    torn: Vec<u8>,
    inode: Option<u64>,
}

impl Tail {
    /// Starts at the beginning of a file.
    pub fn new(path: &Path) -> Tail {
        Tail::from(path, 0)
    }

    /// Starts after this many bytes, at the end of a line.
    pub fn from(path: &Path, offset: u64) -> Tail {
        Tail { path: path.to_path_buf(), offset, torn: Vec::new(), inode: None }
    }

    /// Bytes of the whole lines that it has passed.
    pub fn bytes(&self) -> u64 {
        self.offset - self.torn.len() as u64
    }

    /// Whether the file was replaced or cut since the last reading.
    pub fn is_replaced(&self) -> bool {
        let other =
            |now: Metadata| self.inode.is_some_and(|inode| inode != now.ino()) || now.len() < self.offset;
        std::fs::metadata(&self.path).is_ok_and(other)
    }

    /// Passes every further whole line, up to about `most` bytes, and returns whether there is more.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&mut self, most: usize, each: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let failed = |error| Error::read(&self.path, error);
        let mut file = File::open(&self.path).map_err(failed)?;
        let of = file.metadata().map_err(failed)?;
        self.inode = Some(of.ino());
        if of.len() <= self.offset {
            return Ok(false);
        }
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        let (mut block, mut left) = (vec![0; BLOCK.min(most.max(1))], most);
        while left > 0 {
            let length = left.min(block.len());
            let read = file.read(&mut block[..length]).map_err(failed)?;
            if read == 0 {
                return Ok(false);
            }
            (self.offset, left) = (self.offset + read as u64, left - read);
            let mut rest = &block[..read];
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let (line, after) = rest.split_at(end);
                if self.torn.is_empty() {
                    each(line);
                } else {
                    self.torn.extend_from_slice(line);
                    each(&self.torn);
                    self.torn.clear();
                }
                rest = &after[1..];
            }
            if self.torn.len() < LONGEST {
                self.torn.extend_from_slice(rest);
            }
        }
        Ok(true)
    }
}
