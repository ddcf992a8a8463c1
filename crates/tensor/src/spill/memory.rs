//! Host memory in place of a file.
//!
//! If the machine supplies host memory that it copies from and to directly ([`Copies::staging`]), blocks are of that
//! memory and transfers go straight to it. Such memory is slow to allocate, so all of it is allocated before the first
//! transfer.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::copies::{Copies, HostBuffer};
use super::file::{Backing, Step};

/// Bytes guarded by one lock and requested from the machine at once: such requests are slow.
const BLOCK: usize = 1 << 20;
const PINNED_BLOCK: usize = 64 << 20;
/// Threads that make those requests in parallel: each has pages to clear.
const PINNING: usize = 4;

/// Bytes, once they are written.
enum Block {
    Absent,
    Plain(Vec<u8>),
    Pinned(Box<dyn HostBuffer>),
}

/// A range of bytes; plain blocks are allocated when first written.
pub(super) struct Memory {
    blocks: Vec<Mutex<Block>>,
    block_bytes: usize,
    copies: Option<Arc<dyn Copies>>,
}

impl Memory {
    /// Plain host memory.
    pub fn new(bytes: u64) -> Memory {
        Memory::of_blocks(bytes, BLOCK, None)
    }

    /// The machine's host memory, if it supplies any.
    pub fn of(bytes: u64, copies: &Arc<dyn Copies>) -> Memory {
        match copies.staging(1) {
            Some(_) => {
                let memory = Memory::of_blocks(bytes, PINNED_BLOCK, Some(copies.clone()));
                memory.allocate();
                memory
            }
            None => Memory::new(bytes),
        }
    }

    /// Allocates all blocks.
    fn allocate(&self) {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let offset = next.fetch_add(1, Ordering::Relaxed) as u64 * self.block_bytes as u64;
                if self.at(offset, |_, _, _| ()).is_none() {
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            (1..PINNING.min(self.blocks.len())).for_each(|_| drop(scope.spawn(work)));
            work();
        });
    }

    fn of_blocks(bytes: u64, block_bytes: usize, copies: Option<Arc<dyn Copies>>) -> Memory {
        let blocks = (0..bytes.div_ceil(block_bytes as u64)).map(|_| Mutex::new(Block::Absent)).collect();
        Memory { blocks, block_bytes, copies }
    }

    /// Calls `use_` under the block's lock with the rest of the block at `offset`, allocated if necessary: its first
    /// byte, its length, and whether the machine copies from and to it directly.
    fn at<T>(&self, offset: u64, use_: impl FnOnce(*mut u8, usize, bool) -> T) -> Option<T> {
        let (index, start) = (offset as usize / self.block_bytes, offset as usize % self.block_bytes);
        let mut block = self.blocks.get(index)?.lock().unwrap_or_else(PoisonError::into_inner);
        if let Block::Absent = *block {
            let pinned = self.copies.as_ref().and_then(|copies| copies.staging(self.block_bytes));
            *block = pinned.map_or_else(|| Block::Plain(vec![0; self.block_bytes]), Block::Pinned);
        }
        let len = self.block_bytes - start;
        match &mut *block {
            Block::Absent => None,
            Block::Plain(bytes) => Some(use_(bytes[start..].as_mut_ptr(), len, false)),
            Block::Pinned(buffer) => Some(use_(buffer.start().wrapping_add(start), len, true)),
        }
    }
}

impl Backing for Memory {
    fn write_at(&self, bytes: &[u8], offset: u64, _: Step) -> io::Result<usize> {
        let copied = self.at(offset, |start, rest, _| {
            let len = bytes.len().min(rest);
            // SAFETY: the block has `rest` bytes from `start` on; overlapping transfers are never in flight at the same
            // time.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, len) };
            len
        });
        Ok(copied.unwrap_or(0))
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64, _: Step) -> io::Result<usize> {
        let copied = self.at(offset, |start, rest, _| {
            let len = bytes.len().min(rest);
            // SAFETY: as in `write_at`.
            unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), len) };
            len
        });
        Ok(copied.unwrap_or(0))
    }

    fn place(&self, offset: u64, len: usize) -> Option<usize> {
        self.copies.as_ref()?;
        let found =
            self.at(offset, |start, rest, pinned| (pinned && len <= rest).then(|| start.expose_provenance()));
        found.flatten()
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
        assert_eq!(memory.place(0, 1), None);
    }
}
