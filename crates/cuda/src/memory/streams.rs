//! The streams of one rank: one for computation, one for each direction of concurrent copies, one for data from other
//! ranks of the device; and the fences that such copies wait for.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::blocks::{Blocks, Counts, Work};
use crate::Result;
use crate::driver::{Driver, Event, Stream};

/// Number of fences that copies can wait for. A fence whose event has been reused by a later one is waited for there:
/// later than needed, never too early.
const FENCES: u64 = 1024;

/// The streams, destroyed when the last reference is dropped.
pub struct Streams {
    /// The device.
    pub driver: Arc<dyn Driver>,
    /// Runs operations in program order. Uses other than [`Streams::issue`] must go through [`Streams::compute`].
    compute: Stream,
    blocks: Mutex<Blocks>,
    /// Host to device, concurrent with the compute stream.
    pub up: Stream,
    /// Device to host.
    pub down: Stream,
    /// From other ranks of the device.
    pub exchange: Stream,
    /// Bytes of the device behind pools.
    pub backed: AtomicU64,
    fences: Vec<Event>,
    fenced: AtomicU64,
}

impl Streams {
    /// Creates four streams of a device.
    ///
    /// # Errors
    /// If the driver has none left.
    pub fn new(driver: Arc<dyn Driver>) -> Result<Streams> {
        let [compute, up, down, exchange] =
            [driver.stream()?, driver.stream()?, driver.stream()?, driver.stream()?];
        let fences = (0..FENCES).map(|_| driver.event(false)).collect::<Result<_>>()?;
        let (blocks, [backed, fenced]) = (Mutex::default(), [AtomicU64::new(0), AtomicU64::new(0)]);
        Ok(Streams { driver, compute, blocks, up, down, exchange, backed, fences, fenced })
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The compute stream, with all earlier operations issued; `why` is counted as the reason for cutting a block.
    /// Called on the issuing thread.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn compute(&self, why: &'static str) -> Result<Stream> {
        self.blocks().cut(Some(why), self.driver.as_ref(), self.compute)?;
        Ok(self.compute)
    }

    /// Issues an operation, at the latest at the end of its block.
    ///
    /// # Safety
    /// Its memory lives until the compute stream has executed it.
    ///
    /// # Errors
    /// If the device has failed.
    pub unsafe fn issue(&self, work: Work) -> Result<()> {
        // SAFETY: the caller's promise; other uses of the stream go through `compute`.
        unsafe { self.blocks().issue(work, self.driver.as_ref(), self.compute) }
    }

    /// Starts a block.
    pub fn enter_block(&self) {
        self.blocks().enter();
    }

    /// Ends a block.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn leave_block(&self) -> Result<()> {
        self.blocks().cut(None, self.driver.as_ref(), self.compute)
    }

    /// Enables or disables capturing of blocks.
    pub fn capture(&self, on: bool) {
        self.blocks().on = on;
    }

    /// Counts of captured and replayed blocks.
    pub fn counts(&self) -> Counts {
        self.blocks().counts().clone()
    }

    /// Marks the current point of the compute stream; called on the issuing thread.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn fence(&self) -> Result<u64> {
        let fence = self.fenced.fetch_add(1, Ordering::Relaxed);
        self.driver.record(self.event(fence), self.compute("a transfer waits for this point")?)?;
        Ok(fence)
    }

    /// The event of a fence.
    pub fn event(&self, fence: u64) -> Event {
        self.fences[(fence % FENCES) as usize]
    }

    /// Waits until all work issued so far is done.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn synchronise(&self) -> Result<()> {
        self.driver.synchronise(self.compute("the host waits")?)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // Memory of unissued operations may be freed already.
        self.blocks().clear(self.driver.as_ref());
        // There is no caller to report to; the driver frees everything when the process ends.
        for stream in [self.compute, self.up, self.down, self.exchange] {
            let _ = self.driver.synchronise(stream).and_then(|()| self.driver.end_stream(stream));
        }
        for event in &self.fences {
            let _ = self.driver.end_event(*event);
        }
    }
}
