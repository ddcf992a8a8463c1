//! Reads of results by the host: small ones go through pinned slots, so that no thread waits before the retire point.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use fathom_tensor::{InFlight, Tensor};

use super::Streams;
use crate::Result;
use crate::driver::{Event, Rows, Way};

/// Bytes per slot. Losses, norms and flags take a few bytes; a row of losses by position some thousand.
const SLOT_BYTES: usize = 16 << 10;
/// Largest number of reads in flight; further ones are waited for where they are issued.
const SLOTS: usize = 64;

/// Reason for cutting a block.
const WHY: &str = "the host reads";

/// Pinned slots that receive results.
pub struct Reads {
    streams: Arc<Streams>,
    start: u64,
    free: Mutex<Vec<usize>>,
}

impl Reads {
    /// Pins the slots.
    ///
    /// # Errors
    /// If the host has no memory left to pin.
    pub fn new(streams: Arc<Streams>) -> Result<Reads> {
        let start = streams.driver.pin(SLOTS * SLOT_BYTES)?;
        Ok(Reads { streams, start, free: Mutex::new((0..SLOTS).rev().collect()) })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        // Slots in use hold an `Arc` of this, so none is in use.
        let _ = self.streams.driver.unpin(self.start);
    }
}

/// A slot that receives a copy; freed on drop, after the copy.
struct ReadSlot {
    reads: Arc<Reads>,
    slot: usize,
    done: Event,
    bytes: usize,
}

impl ReadSlot {
    fn address(&self) -> u64 {
        self.reads.start + (self.slot * SLOT_BYTES) as u64
    }

    fn collect(self) -> Vec<u8> {
        if let Err(error) = self.reads.streams.driver.join(self.done) {
            panic!("read: {error}");
        }
        let start: *const u8 = std::ptr::with_exposed_provenance(self.address() as usize);
        // SAFETY: the slot is pinned memory of this process, the copy has written `bytes` of it, and nothing else uses
        // it until this is dropped.
        unsafe { std::slice::from_raw_parts(start, self.bytes) }.to_vec()
    }
}

impl Drop for ReadSlot {
    fn drop(&mut self) {
        let driver = &self.reads.streams.driver;
        // A device that has failed does not write any more either.
        let _ = driver.join(self.done).and_then(|()| driver.end_event(self.done));
        self.reads.free().push(self.slot);
    }
}

/// Starts reading a tensor as it is at this point of the compute stream. Waits here for a large one.
///
/// # Errors
/// If the device has failed.
pub fn read(reads: &Arc<Reads>, src: &Tensor) -> Result<InFlight> {
    let streams = &reads.streams;
    let (driver, from) = (&streams.driver, Rows::of(src, src.address()));
    let bytes = from.bytes();
    let slot = if bytes <= SLOT_BYTES { reads.free().pop() } else { None };
    let Some(slot) = slot else {
        let mut data = vec![0u8; bytes];
        let to = from.packed_at(data.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the vector has this many bytes, and the stream is waited for before it is used.
        unsafe { driver.copy(Way::Down, from, to, streams.compute(WHY)?)? };
        streams.synchronise()?;
        return Ok(InFlight::new(src, move || data));
    };
    let done = match driver.event(false) {
        Ok(done) => done,
        Err(error) => {
            reads.free().push(slot);
            return Err(error);
        }
    };
    let landing = ReadSlot { reads: reads.clone(), slot, done, bytes };
    let to = from.packed_at(landing.address());
    let compute = streams.compute(WHY)?;
    // SAFETY: the slot is large enough, and is freed after the event that follows the copy.
    unsafe { driver.copy(Way::Down, from, to, compute)? };
    driver.record(done, compute)?;
    Ok(InFlight::new(src, move || landing.collect()))
}
