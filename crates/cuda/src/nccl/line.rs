//! One direction between two ranks: something that carries bytes in the order of a stream, and that stream.
#![allow(unsafe_code)]

use std::sync::{Arc, OnceLock};

use super::comm::Communicator;
use crate::Result;
use crate::driver::{Driver, Event, Rows, Stream, Way};
use crate::memory::cut;

/// Bytes that rows with gaps are sent in, as they are laid end to end first. Their receiver cuts the message likewise; what has no
/// gaps goes whole, as each call costs NCCL a thread.
pub(super) const PIECE_BYTES: usize = 16 << 20;

/// Where a message is cut.
fn pieces(bytes: usize, is_cut: bool) -> impl Iterator<Item = (usize, usize)> {
    let piece = if is_cut { PIECE_BYTES } else { bytes.max(1) };
    (0..bytes).step_by(piece).map(move |at| (at, piece.min(bytes - at)))
}

/// Carries bytes from one rank to another.
///
/// # Safety
/// Exactly the bytes that are asked for are read or written, in the order of the stream.
pub unsafe trait Carrier: Send + Sync {
    /// Bytes to the other rank.
    ///
    /// # Safety
    /// The memory lives until the stream has come there.
    unsafe fn send(&self, from: u64, bytes: usize, stream: Stream) -> Result<()>;
    /// Bytes from the other rank.
    ///
    /// # Safety
    /// As for sending; and nothing else uses the memory until then.
    unsafe fn receive(&self, into: u64, bytes: usize, stream: Stream) -> Result<()>;
}

/// A communicator of two ranks; the other one is this.
pub(super) struct Pair {
    pub comm: Arc<Communicator>,
    pub other: usize,
}

// SAFETY: NCCL copies what it is asked for, in the order of the stream.
unsafe impl Carrier for Pair {
    unsafe fn send(&self, from: u64, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.comm.send(from, bytes, self.other, stream) }
    }

    unsafe fn receive(&self, into: u64, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.comm.receive(into, bytes, self.other, stream) }
    }
}

/// A point of a stream that several look at; ended with the last of them.
pub(super) struct Point {
    driver: Arc<dyn Driver>,
    pub event: Event,
}

impl Point {
    /// Where a stream is now.
    pub fn of(driver: &Arc<dyn Driver>, stream: Stream) -> Result<Arc<Point>> {
        let point = Point { driver: driver.clone(), event: driver.event(false)? };
        driver.record(point.event, stream)?;
        Ok(Arc::new(point))
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // There is no caller left to report to.
        let _ = self.driver.end_event(self.event);
    }
}

/// A direction. Lives until its carrier is ended: NCCL may still put on the stream what it was asked for.
pub(super) struct Line {
    driver: Arc<dyn Driver>,
    carrier: Arc<dyn Carrier>,
    stream: Stream,
    /// Memory of the device where rows with gaps are laid end to end, taken when first needed.
    staging: OnceLock<u64>,
    /// That of the first byte.
    first: OnceLock<u64>,
}

impl Line {
    /// A direction with a stream of its own.
    ///
    /// # Errors
    /// If the driver has no more streams.
    pub fn new(driver: &Arc<dyn Driver>, carrier: Arc<dyn Carrier>) -> Result<Line> {
        let stream = driver.stream()?;
        let (staging, first) = (OnceLock::new(), OnceLock::new());
        Ok(Line { driver: driver.clone(), carrier, stream, staging, first })
    }

    /// Sends rows once the stream `after` has come to where it is now. The point where it is done.
    ///
    /// # Safety
    /// The rows live until then.
    pub unsafe fn send(&self, rows: Rows, after: Stream) -> Result<Arc<Point>> {
        let (driver, stream) = (&self.driver, self.stream);
        driver.wait(stream, Point::of(driver, after)?.event)?;
        for (at, piece) in pieces(rows.bytes(), !rows.is_flat()) {
            let mut from = rows.address + at as u64;
            if !rows.is_flat() {
                from = self.memory(&self.staging, PIECE_BYTES)?;
                for (part, position) in cut(&rows, at, piece) {
                    let to = part.packed_at(from + position as u64);
                    // SAFETY: the caller's promise; staging has room, and belongs to this stream.
                    unsafe { driver.copy(Way::Across, part, to, stream)? };
                }
            }
            // SAFETY: the caller's promise, or staging, which the next piece overwrites in the order of the stream.
            unsafe { self.carrier.send(from, piece, stream)? };
        }
        Point::of(driver, stream)
    }

    /// Receives into memory without gaps after `free`, and lets `before` wait for it; `is_cut` if it was sent in pieces. The point
    /// where it is done.
    ///
    /// # Safety
    /// The memory lives until then, and is not used by others.
    pub unsafe fn receive(
        &self,
        into: u64,
        (bytes, is_cut): (usize, bool),
        free: &Point,
        before: Stream,
    ) -> Result<Arc<Point>> {
        let (driver, stream) = (&self.driver, self.stream);
        driver.wait(stream, free.event)?;
        for (at, piece) in pieces(bytes, is_cut) {
            // SAFETY: the caller's promise.
            unsafe { self.carrier.receive(into + at as u64, piece, stream)? };
        }
        let done = Point::of(driver, stream)?;
        driver.wait(before, done.event)?;
        Ok(done)
    }

    /// A first byte over the direction, waited for: NCCL connects two ranks when they first have something to say, and holds up
    /// both until it has.
    ///
    /// # Errors
    /// If no process answers there.
    pub fn warm(&self, sends: bool) -> Result<()> {
        let at = self.memory(&self.first, 1)?;
        // SAFETY: memory of a byte, which lives as long as the stream.
        unsafe {
            if sends {
                self.carrier.send(at, 1, self.stream)?
            } else {
                self.carrier.receive(at, 1, self.stream)?
            }
        }
        self.finish()
    }

    /// The host waits for all of the direction's messages.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn finish(&self) -> Result<()> {
        self.driver.synchronise(self.stream)
    }

    fn memory(&self, place: &OnceLock<u64>, bytes: usize) -> Result<u64> {
        if let Some(at) = place.get() {
            return Ok(*at);
        }
        let at = self.driver.allocate(bytes as u64)?;
        Ok(*place.get_or_init(|| at))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let driver = &self.driver;
        // There is no caller left to report to.
        let _ = self.finish().and_then(|()| driver.end_stream(self.stream));
        for at in [&self.staging, &self.first].into_iter().filter_map(OnceLock::get) {
            let _ = driver.free(*at);
        }
    }
}
