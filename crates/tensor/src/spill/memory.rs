//! Memory of the host in place of a file.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::file::{Backing, Step};

/// Bytes that one lock guards.
const BLOCK: usize = 1 << 20;

/// A range of bytes, allocated block by block when first written.
pub(super) struct Memory(Vec<Mutex<Vec<u8>>>);

impl Memory {
    pub fn new(bytes: u64) -> Memory {
        Memory((0..bytes.div_ceil(BLOCK as u64)).map(|_| Mutex::default()).collect())
    }

    /// Calls `copy` with the rest of the block at `offset`.
    fn at(&self, offset: u64, copy: impl FnOnce(&mut [u8]) -> usize) -> io::Result<usize> {
        let (block, start) = (offset as usize / BLOCK, offset as usize % BLOCK);
        let Some(block) = self.0.get(block) else { return Ok(0) };
        let mut block = block.lock().unwrap_or_else(PoisonError::into_inner);
        if block.is_empty() {
            block.resize(BLOCK, 0);
        }
        Ok(copy(&mut block[start..]))
    }
}

impl Backing for Memory {
    fn write_at(&self, bytes: &[u8], offset: u64, _: Step) -> io::Result<usize> {
        self.at(offset, |block| {
            let len = bytes.len().min(block.len());
            block[..len].copy_from_slice(&bytes[..len]);
            len
        })
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64, _: Step) -> io::Result<usize> {
        self.at(offset, |block| {
            let len = bytes.len().min(block.len());
            bytes[..len].copy_from_slice(&block[..len]);
            len
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_end_at_blocks_and_at_the_end() {
        let memory = Memory::new(BLOCK as u64 + 1);
        let step = Step { transfer: 0, piece: 0, attempt: 0 };
        let at = BLOCK as u64 - 3;
        assert_eq!(memory.write_at(&[7; 10], at, step).unwrap(), 3);
        let mut back = [0; 10];
        assert_eq!(memory.read_at(&mut back, at, step).unwrap(), 3);
        assert_eq!(back, [7, 7, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(memory.read_at(&mut back, 2 * BLOCK as u64, step).unwrap(), 0);
    }
}
