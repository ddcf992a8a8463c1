//! Random access to remote files, for Parquet.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::access::Anywhere;
use super::remote::{Place, RemoteOptions, answered, ask, unopened};
use crate::error::Error;

/// Number of cached blocks: one for each of a few columns read in parallel.
const KEPT: usize = 4;

/// A remote file, read in blocks of one range request each.
#[derive(Clone)]
pub(super) struct Blocks(Arc<BlockCache>);

struct BlockCache {
    place: Place,
    options: RemoteOptions,
    size: u64,
    /// Cached blocks by number, least recently used first.
    kept: Mutex<VecDeque<(u64, Bytes)>>,
}

impl Blocks {
    /// Opens a file by requesting its first block, so that a missing file or permission is detected at once.
    ///
    /// # Errors
    /// [`Error::Remote`] with the server's message, [`Error::Unavailable`] if the failure is transient.
    pub(super) fn open(location: &str, options: &RemoteOptions) -> Result<Blocks, Error> {
        let place = Place::of(location, options)?;
        let first = ask(&place, 0, options).and_then(answered);
        let (bytes, size) = first.map_err(|error| unopened(location, error))?;
        let kept = Mutex::new(VecDeque::from([(0, bytes.into())]));
        Ok(Blocks(Arc::new(BlockCache { place, options: options.clone(), size, kept })))
    }

    /// Bytes of a block from an offset on; empty beyond the end.
    fn from(&self, offset: u64) -> io::Result<Bytes> {
        let BlockCache { place, options, size, kept } = &*self.0;
        if offset >= *size {
            return Ok(Bytes::new());
        }
        let range = options.range_bytes.max(1);
        let (number, start) = (offset / range, offset / range * range);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let block = match kept.iter().position(|(known, _)| *known == number) {
            Some(place) => kept.remove(place).map(|(_, block)| block).unwrap_or_default(),
            None => {
                let (bytes, _) = ask(place, start, options).and_then(answered)?;
                bytes.into()
            }
        };
        if (block.len() as u64) < range.min(size - start) {
            return Err(io::Error::other("the server sent less than the range that it was asked for"));
        }
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((number, block.clone()));
        Ok(block.slice((offset - start) as usize..))
    }
}

impl Anywhere for Blocks {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.size)
    }

    fn at(&self, start: u64) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Reader { blocks: self.clone(), at: start }))
    }
}

/// Sequential reader starting at an offset.
struct Reader {
    blocks: Blocks,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.blocks.from(self.at)?;
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        self.at += count as u64;
        Ok(count)
    }
}
