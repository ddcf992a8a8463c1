//! The streams of one rank: one that computes, one for each direction of copies made behind it, one for what other ranks
//! of the device share, and the points that such copies wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Result;
use crate::driver::{Driver, Event, Stream};

/// Points of the compute stream that copies can wait for. A point that is taken over by a later one is waited for
/// there: later than needed, never too early.
const FENCES: u64 = 1024;

/// Streams, ended with the last that holds them.
pub struct Streams {
    /// The device.
    pub driver: Arc<dyn Driver>,
    /// Where operations run, in the order of their calls.
    pub compute: Stream,
    /// Host to device, behind the compute stream's back.
    pub up: Stream,
    /// Device to host.
    pub down: Stream,
    /// From other ranks of the device.
    pub exchange: Stream,
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
        Ok(Streams { driver, compute, up, down, exchange, fences, fenced: AtomicU64::new(0) })
    }

    /// Marks where the compute stream is now; called on the issuing thread.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn fence(&self) -> Result<u64> {
        let fence = self.fenced.fetch_add(1, Ordering::Relaxed);
        self.driver.record(self.event(fence), self.compute)?;
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
        self.driver.synchronise(self.compute)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // There is nobody left to report to; the driver gives everything back when the process ends.
        for stream in [self.compute, self.up, self.down, self.exchange] {
            let _ = self.driver.synchronise(stream).and_then(|()| self.driver.end_stream(stream));
        }
        for event in &self.fences {
            let _ = self.driver.end_event(*event);
        }
    }
}
