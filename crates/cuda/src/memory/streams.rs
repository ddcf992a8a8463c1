//! The streams of one rank: one that computes, one for each direction of copies made behind it, one for what other ranks
//! of the device share, and the points that such copies wait for.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::blocks::{Blocks, Counts, Work};
use crate::Result;
use crate::driver::{Driver, Event, Stream};

/// Points of the compute stream that copies can wait for. A point that is taken over by a later one is waited for
/// there: later than needed, never too early.
const FENCES: u64 = 1024;

/// Streams, ended with the last that holds them.
pub struct Streams {
    /// The device.
    pub driver: Arc<dyn Driver>,
    /// Where operations run, in the order of their calls. Whoever uses it otherwise than by [`Streams::issue`] comes by
    /// [`Streams::compute`].
    compute: Stream,
    blocks: Mutex<Blocks>,
    /// Host to device, behind the compute stream's back.
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
    /// Four streams of a device.
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

    /// The compute stream, with everything issued that was asked for before; `why` it is needed, for counts of what cuts
    /// blocks. Called on the issuing thread.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn compute(&self, why: &'static str) -> Result<Stream> {
        self.blocks().cut(Some(why), self.driver.as_ref(), self.compute)?;
        Ok(self.compute)
    }

    /// Issues an operation, at the end of its block at the latest.
    ///
    /// # Safety
    /// What it uses lives until the compute stream has passed.
    ///
    /// # Errors
    /// If the device has failed.
    pub unsafe fn issue(&self, work: Work) -> Result<()> {
        // SAFETY: the caller's promise; others come by `compute`.
        unsafe { self.blocks().issue(work, self.driver.as_ref(), self.compute) }
    }

    /// A block begins.
    pub fn enter_block(&self) {
        self.blocks().enter();
    }

    /// A block ends.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn leave_block(&self) -> Result<()> {
        self.blocks().cut(None, self.driver.as_ref(), self.compute)
    }

    /// Whether blocks are captured.
    pub fn capture(&self, on: bool) {
        self.blocks().on = on;
    }

    /// What became of blocks so far.
    pub fn counts(&self) -> Counts {
        self.blocks().counts().clone()
    }

    /// Marks where the compute stream is now; called on the issuing thread.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn fence(&self) -> Result<u64> {
        let fence = self.fenced.fetch_add(1, Ordering::Relaxed);
        self.driver.record(self.event(fence), self.compute("a transfer waits for this point")?)?;
        Ok(fence)
    }

    /// The point that a fence marks.
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
        // Memory of what was not issued may be gone.
        self.blocks().clear(self.driver.as_ref());
        // There is no caller left to report to; the driver gives everything back when the process ends.
        for stream in [self.compute, self.up, self.down, self.exchange] {
            let _ = self.driver.synchronise(stream).and_then(|()| self.driver.end_stream(stream));
        }
        for event in &self.fences {
            let _ = self.driver.end_event(*event);
        }
    }
}
