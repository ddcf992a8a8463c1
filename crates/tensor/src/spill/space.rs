//! Allocation of the file's bytes. Like the pool's: whole pages, best fit, lowest offset among equals, in program order
//! on one thread, so a plan and a run assign the same extents.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::stats::Kind;
use super::tag::Tag;
use crate::best_fit::BestFit;

/// Granularity of extents in bytes; direct IO needs memory, offsets and lengths in multiples of it.
pub const PAGE: u64 = 4096;

/// Bytes that an extent of `bytes` occupies in the file.
pub(super) fn charge(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

/// The allocation state of one file.
#[derive(Default)]
pub(super) struct Space {
    pub capacity: u64,
    pub live: u64,
    pub peak_live: u64,
    fit: BestFit,
}

impl Space {
    /// A file with nothing allocated.
    pub fn new(capacity: u64) -> Space {
        Space { capacity, ..Space::default() }
    }

    /// An offset for `size` bytes; `None` if there is no room.
    fn place(&mut self, size: u64) -> Option<u64> {
        let offset = self.fit.place(size, self.capacity)?;
        self.live += size;
        self.peak_live = self.peak_live.max(self.live);
        Some(offset)
    }

    fn give_back(&mut self, offset: u64, size: u64) {
        self.live -= size;
        self.fit.give_back(offset, size);
    }

    /// Highest end so far.
    pub fn peak_end(&self) -> u64 {
        self.fit.peak_end
    }
}

/// A charged piece of the file; released when dropped.
pub(super) struct Extent {
    space: Rc<RefCell<Space>>,
    pub offset: u64,
    /// Size in whole pages.
    pub size: u64,
    /// Number of transfers and shares reading it now.
    reads: Cell<u32>,
    writing: Cell<bool>,
}

impl Extent {
    /// Allocates room for `bytes`; `None` if there is none.
    pub fn new(space: &Rc<RefCell<Space>>, bytes: u64) -> Option<Extent> {
        let size = charge(bytes);
        let offset = if size == 0 { 0 } else { space.borrow_mut().place(size)? };
        let (reads, writing) = (Cell::new(0), Cell::new(false));
        Some(Extent { space: space.clone(), offset, size, reads, writing })
    }

    /// Records that a transfer starts using the extent.
    ///
    /// # Panics
    /// If another transfer is writing it, or if this one writes and another reads it.
    #[track_caller]
    pub fn begin(&self, kind: Kind, tag: Tag) {
        assert!(!self.writing.get(), "spill: {tag} is being written: retire its transfer before it is used");
        if kind == Kind::Write {
            let reads = self.reads.get();
            assert!(reads == 0, "spill: {tag} is being read: retire its transfers and end its share first");
            self.writing.set(true);
        } else {
            self.reads.set(self.reads.get() + 1);
        }
    }

    /// Records that a transfer has ended.
    pub fn end(&self, kind: Kind) {
        match kind {
            Kind::Write => self.writing.set(false),
            _ => self.reads.set(self.reads.get() - 1),
        }
    }

    /// The allocation state it belongs to.
    pub fn space(&self) -> &Rc<RefCell<Space>> {
        &self.space
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if self.size > 0 {
            self.space.borrow_mut().give_back(self.offset, self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_pages_and_gaps_are_used_again() {
        let space = Rc::new(RefCell::new(Space::new(8 * PAGE)));
        let take = |bytes| Extent::new(&space, bytes);
        let [a, b, c] = [1, 4096, 4097].map(|bytes| take(bytes).unwrap());
        assert_eq!([a.offset, b.offset, c.offset], [0, PAGE, 2 * PAGE]);
        assert_eq!([a.size, b.size, c.size], [PAGE, PAGE, 2 * PAGE]);
        drop(a);
        drop(b);
        let merged = take(2 * PAGE).unwrap();
        assert_eq!(merged.offset, 0);
        drop(c);
        // The gap at the end extends up to the capacity and no further.
        assert!(take(6 * PAGE + 1).is_none());
        let rest = take(6 * PAGE).unwrap();
        assert_eq!((rest.offset, space.borrow().live), (2 * PAGE, 8 * PAGE));
        drop((merged, rest));
        let state = space.borrow();
        assert_eq!((state.live, state.peak_live, state.peak_end()), (0, 8 * PAGE, 8 * PAGE));
    }

    #[test]
    fn nothing_takes_no_room() {
        let space = Rc::new(RefCell::new(Space::default()));
        assert_eq!(Extent::new(&space, 0).unwrap().size, 0);
        assert!(Extent::new(&space, 1).is_none());
    }
}
