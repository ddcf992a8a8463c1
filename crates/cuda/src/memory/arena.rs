//! The address range behind a pool: addresses for the whole budget at once, backed by as much memory as the pool has
//! ever used. The device thus holds the plan's reserved bytes rather than the budget.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fathom_tensor::Arena;

use super::Streams;
use crate::driver::Backing;
use crate::{Error, Result};

/// Least step in bytes of backing memory, so that filling a device takes only some hundred calls of the driver.
const STEP: u64 = 32 << 20;

/// An address range with a growing backed part.
pub struct GrowingRange {
    streams: Arc<Streams>,
    base: u64,
    /// Size; a multiple of the driver's chunk.
    bytes: u64,
    /// Backed parts; `None` if the driver cannot reserve addresses, in which case all of the range is backed.
    parts: Option<RefCell<Vec<BackedRange>>>,
}

struct BackedRange {
    start: u64,
    bytes: u64,
    backing: Backing,
}

impl GrowingRange {
    /// Reserves addresses for `bytes`.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn new(streams: Arc<Streams>, bytes: u64) -> Result<GrowingRange> {
        let driver = streams.driver.clone();
        let bytes = bytes.max(1).next_multiple_of(driver.chunk_bytes());
        if !driver.facts().virtual_memory {
            let base = driver.allocate(bytes)?;
            streams.backed.fetch_add(bytes, Ordering::Relaxed);
            return Ok(GrowingRange { streams, base, bytes, parts: None });
        }
        let base = driver.reserve(bytes)?;
        Ok(GrowingRange { streams, base, bytes, parts: Some(RefCell::default()) })
    }

    /// Bytes backed so far.
    fn backed(parts: &[BackedRange]) -> u64 {
        parts.last().map_or(0, |part| part.start + part.bytes)
    }

    fn extend(&self, parts: &mut Vec<BackedRange>, end: u64) -> Result<()> {
        let start = GrowingRange::backed(parts);
        if end <= start {
            return Ok(());
        }
        let driver = &self.streams.driver;
        let step = STEP.next_multiple_of(driver.chunk_bytes());
        let wanted = (end - start).next_multiple_of(step).min(self.bytes - start);
        let least = (end - start).next_multiple_of(driver.chunk_bytes());
        let at = self.base + start;
        // Near the end of the device's memory a whole step may be too much.
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

impl Arena for GrowingRange {
    fn base(&self) -> u64 {
        self.base
    }

    fn grow(&self, end: u64) -> std::result::Result<(), String> {
        let Some(parts) = &self.parts else { return Ok(()) };
        let mut parts = parts.borrow_mut();
        self.extend(&mut parts, end).map_err(|error| {
            let (free, total) = self.streams.driver.memory().unwrap_or_default();
            let held = GrowingRange::backed(&parts);
            format!(
                "the device's pool has {held} bytes and asks for {end}; {free} of {total} are free; {error}"
            )
        })
    }
}

impl Drop for GrowingRange {
    fn drop(&mut self) {
        let driver = &self.streams.driver;
        // Issued work may still use the memory. A failure here has already been reported where results were waited for.
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
