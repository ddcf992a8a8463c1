//! The range behind a pool: addresses for the whole budget at once, memory behind as many as the pool has ever used. So
//! the device holds what the plan calls reserved, and not the budget.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fathom_tensor::Arena;

use super::Streams;
use crate::driver::Backing;
use crate::{Error, Result};

/// Memory comes in steps of at least this many bytes: a call of the driver for each of some hundred.
const STEP: u64 = 32 << 20;

/// Addresses with a growing part that has memory.
pub struct Growing {
    streams: Arc<Streams>,
    base: u64,
    /// A multiple of the driver's chunk.
    bytes: u64,
    /// None where the driver cannot reserve: then all of it has memory.
    parts: Option<RefCell<Vec<BackedRange>>>,
}

struct BackedRange {
    start: u64,
    bytes: u64,
    backing: Backing,
}

impl Growing {
    /// Addresses for `bytes`.
    ///
    /// # Errors
    /// If the driver refuses them.
    pub fn new(streams: Arc<Streams>, bytes: u64) -> Result<Growing> {
        let driver = streams.driver.clone();
        let bytes = bytes.max(1).next_multiple_of(driver.chunk_bytes());
        if !driver.facts().virtual_memory {
            let base = driver.allocate(bytes)?;
            streams.backed.fetch_add(bytes, Ordering::Relaxed);
            return Ok(Growing { streams, base, bytes, parts: None });
        }
        let base = driver.reserve(bytes)?;
        Ok(Growing { streams, base, bytes, parts: Some(RefCell::default()) })
    }

    /// Bytes that have memory.
    fn backed(parts: &[BackedRange]) -> u64 {
        parts.last().map_or(0, |part| part.start + part.bytes)
    }

    fn extend(&self, parts: &mut Vec<BackedRange>, end: u64) -> Result<()> {
        let start = Growing::backed(parts);
        if end <= start {
            return Ok(());
        }
        let driver = &self.streams.driver;
        let step = STEP.next_multiple_of(driver.chunk_bytes());
        let wanted = (end - start).next_multiple_of(step).min(self.bytes - start);
        let least = (end - start).next_multiple_of(driver.chunk_bytes());
        let at = self.base + start;
        // Near the device's end a whole step may be too much.
        let (bytes, backing) = match driver.back(at, wanted) {
            Ok(backing) => (wanted, backing),
            Err(_) if least < wanted => (least, driver.back(at, least)?),
            Err(error) => return Err(error),
        };
        self.streams.backed.fetch_add(bytes, Ordering::Relaxed);
        parts.push(BackedRange { start, bytes, backing });
        Ok(())
    }
}

impl Arena for Growing {
    fn base(&self) -> u64 {
        self.base
    }

    fn grow(&self, end: u64) -> std::result::Result<(), String> {
        let Some(parts) = &self.parts else { return Ok(()) };
        let mut parts = parts.borrow_mut();
        self.extend(&mut parts, end).map_err(|error| {
            let (free, total) = self.streams.driver.memory().unwrap_or_default();
            let held = Growing::backed(&parts);
            format!(
                "the device's pool has {held} bytes and asks for {end}; {free} of {total} are free; {error}"
            )
        })
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let driver = &self.streams.driver;
        // Work that was issued may still use the memory. A failure here has been seen by whoever waited for results.
        let give_back = || -> std::result::Result<(), Error> {
            self.streams.synchronise()?;
            let Some(parts) = &self.parts else {
                self.streams.backed.fetch_sub(self.bytes, Ordering::Relaxed);
                return driver.free(self.base);
            };
            for part in parts.borrow().iter() {
                self.streams.backed.fetch_sub(part.bytes, Ordering::Relaxed);
                driver.unback(self.base + part.start, part.bytes, part.backing)?;
            }
            driver.release(self.base, self.bytes)
        };
        let _ = give_back();
    }
}
