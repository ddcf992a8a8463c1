//! A counting global allocator: the heap memory of a program, outside the pool that charges every tensor.
//!
//! The pool's memory is a separate mapping and does not pass through here, so the peak is what is not tracked
//! elsewhere: batches on the host, schedules, readers, and every external crate.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator with a count of live bytes and their peak. Declare it as a binary's `#[global_allocator]`.
pub struct CountingAllocator;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

impl CountingAllocator {
    /// Live heap bytes; 0 in a program with another allocator.
    pub fn live() -> u64 {
        LIVE.load(Ordering::Relaxed) as u64
    }

    /// Restarts the peak at the current value.
    pub fn reset_peak() {
        PEAK.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Most heap bytes that were live at once since [`CountingAllocator::reset_peak`].
    pub fn peak_since_reset() -> u64 {
        PEAK.load(Ordering::Relaxed) as u64
    }
}

fn grow(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
    PEAK.fetch_max(live, Ordering::Relaxed);
}

fn shrink(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counts touch no memory of the caller.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout`.
        let start = unsafe { System.alloc(layout) };
        if !start.is_null() {
            grow(layout.size());
        }
        start
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout`.
        let start = unsafe { System.alloc_zeroed(layout) };
        if !start.is_null() {
            grow(layout.size());
        }
        start
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: `start` came from this allocator, so from the system's, with this layout.
        unsafe { System.dealloc(start, layout) };
        shrink(layout.size());
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(start, layout, bytes) };
        if !moved.is_null() {
            // While a block moves both may exist; the kernel's tools move large ones without a copy.
            grow(bytes);
            shrink(layout.size());
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_passes_through() {
        let layout = Layout::from_size_align(1 << 20, 64).unwrap();
        let before = CountingAllocator::live();
        // SAFETY: the layout has a size; the block is used for nothing and freed as it was made.
        unsafe {
            let block = CountingAllocator.alloc(layout);
            assert_eq!(CountingAllocator::live() - before, 1 << 20);
            let block = CountingAllocator.realloc(block, layout, 2 << 20);
            assert_eq!(CountingAllocator::live() - before, 2 << 20);
            CountingAllocator::reset_peak();
            CountingAllocator.dealloc(block, Layout::from_size_align(2 << 20, 64).unwrap());
        }
        assert_eq!(CountingAllocator::live(), before);
        assert_eq!(CountingAllocator::peak_since_reset(), before + (2 << 20));
    }
}
