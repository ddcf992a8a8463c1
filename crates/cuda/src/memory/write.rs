//! What the host writes, small things through pinned slots: a copy from memory that is not pinned waits, beyond some size, for
//! all that was issued before it.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use super::Streams;
use crate::Result;
use crate::driver::{Event, Rows, Way};

/// Tokens, positions and labels of a micro batch are four bytes each, lists of documents less.
const SLOT_BYTES: usize = 1 << 20;
/// Writes in flight; one more waits for the oldest.
const SLOTS: usize = 8;

/// Pinned slots that are filled one after the other.
pub struct Writes {
    streams: Arc<Streams>,
    start: u64,
    /// When each slot has been read last.
    read: Vec<Event>,
    /// The slot after the last.
    next: Mutex<usize>,
}

impl Writes {
    /// Pins the slots.
    ///
    /// # Errors
    /// If the host has no memory left that can be pinned.
    pub fn new(streams: Arc<Streams>) -> Result<Writes> {
        let start = streams.driver.pin(SLOTS * SLOT_BYTES)?;
        let read = (0..SLOTS).map(|_| streams.driver.event(false)).collect::<Result<_>>()?;
        Ok(Writes { streams, start, read, next: Mutex::new(0) })
    }

    /// Copies bytes to rows of the device, at this point of the compute stream; they have been read when this returns. `why`
    /// it is done, for counts of what cuts blocks.
    ///
    /// # Errors
    /// If the device has failed.
    ///
    /// # Panics
    /// If the rows have another size.
    #[track_caller]
    pub fn write(&self, why: &'static str, bytes: &[u8], to: Rows) -> Result<()> {
        assert_eq!(bytes.len(), to.bytes(), "a write to {to:?}");
        let driver = &self.streams.driver;
        let compute = self.streams.compute(why)?;
        if bytes.len() > SLOT_BYTES {
            let from = to.packed_at(bytes.as_ptr().expose_provenance() as u64);
            // SAFETY: both sides are as long as each other; memory that is not pinned is read before the call returns.
            return unsafe { driver.copy(Way::Up, from, to, compute) };
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = *next;
        *next = (slot + 1) % SLOTS;
        driver.join(self.read[slot])?;
        let address = self.start + (slot * SLOT_BYTES) as u64;
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the slot is pinned memory of this process with room for the bytes; the copy that read it last is over, and
        // the lock keeps others away. The device's rows are the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            driver.copy(Way::Up, to.packed_at(address), to, compute)?;
        }
        driver.record(self.read[slot], compute)
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        let driver = &self.streams.driver;
        for event in &self.read {
            // A device that has failed reads no more either.
            let _ = driver.join(*event).and_then(|()| driver.end_event(*event));
        }
        let _ = driver.unpin(self.start);
    }
}
