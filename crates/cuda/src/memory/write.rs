//! Writes by the host through pinned slots: a copy from pageable memory may wait for all earlier work, and may also
//! return before it has read its source.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use super::{Streams, cut};
use crate::Result;
use crate::driver::{Event, Rows, Way};

/// Bytes per slot. Tokens, positions and labels of a micro-batch take four bytes each, lists of documents less. Longer
/// writes are split.
const SLOT_BYTES: usize = 1 << 20;
/// Largest number of writes in flight; a further one waits for the oldest.
const SLOTS: usize = 8;

/// Pinned slots that are used in turn.
pub struct Writes {
    streams: Arc<Streams>,
    start: u64,
    /// Event after the last read of each slot.
    read: Vec<Event>,
    /// The next slot.
    next: Mutex<usize>,
}

impl Writes {
    /// Pins the slots.
    ///
    /// # Errors
    /// If the host has no memory left to pin.
    pub fn new(streams: Arc<Streams>) -> Result<Writes> {
        let start = streams.driver.pin(SLOTS * SLOT_BYTES)?;
        let read = (0..SLOTS).map(|_| streams.driver.event(false)).collect::<Result<_>>()?;
        Ok(Writes { streams, start, read, next: Mutex::new(0) })
    }

    /// Copies bytes to rows of the device at this point of the compute stream; they have been read when this returns.
    /// `why` is counted as the reason for cutting a block.
    ///
    /// # Errors
    /// If the device has failed.
    ///
    /// # Panics
    /// If the rows have a different size.
    #[track_caller]
    pub fn write(&self, why: &'static str, bytes: &[u8], to: Rows) -> Result<()> {
        assert_eq!(bytes.len(), to.bytes(), "a write to {to:?}");
        let driver = &self.streams.driver;
        let compute = self.streams.compute(why)?;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, piece) in bytes.chunks(SLOT_BYTES).enumerate() {
            let slot = *next;
            *next = (slot + 1) % SLOTS;
            driver.join(self.read[slot])?;
            let address = self.start + (slot * SLOT_BYTES) as u64;
            let start: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: the slot is pinned memory of this process with room for the piece; the last copy that read it has
            // completed, and the lock excludes other threads.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), start, piece.len()) };
            for (rows, position) in cut(&to, index * SLOT_BYTES, piece.len()) {
                let from = rows.packed_at(address + position as u64);
                // SAFETY: as above, until the event that follows; the device's rows are the caller's.
                unsafe { driver.copy(Way::Up, from, rows, compute)? };
            }
            driver.record(self.read[slot], compute)?;
        }
        Ok(())
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        let driver = &self.streams.driver;
        for event in &self.read {
            // A device that has failed does not read any more either.
            let _ = driver.join(*event).and_then(|()| driver.end_event(*event));
        }
        let _ = driver.unpin(self.start);
    }
}
