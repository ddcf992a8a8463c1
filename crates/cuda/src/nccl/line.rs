//! One direction between two ranks: a carrier of bytes in stream order, and its stream.
#![allow(unsafe_code)]

use std::sync::{Arc, OnceLock};

use super::comm::Communicator;
use crate::Result;
use crate::driver::{Driver, Event, Rows, Stream, Way};
use crate::memory::cut;

/// Piece size for rows with gaps, which are packed first. The receiver splits the message likewise; contiguous rows are
/// sent whole, as each call costs NCCL a thread.
pub(super) const PIECE_BYTES: usize = 16 << 20;

/// Splits a message into pieces: offset and length.
fn pieces(bytes: usize, is_cut: bool) -> impl Iterator<Item = (usize, usize)> {
    let piece = if is_cut { PIECE_BYTES } else { bytes.max(1) };
    (0..bytes).step_by(piece).map(move |at| (at, piece.min(bytes - at)))
}

/// Transfers bytes from one rank to another.
///
/// # Safety
/// Reads or writes exactly the requested bytes, in stream order.
pub unsafe trait Carrier: Send + Sync {
    /// Sends bytes to the other rank.
    ///
    /// # Safety
    /// The memory lives until the stream has executed the send.
    unsafe fn send(&self, from: u64, bytes: usize, stream: Stream) -> Result<()>;
    /// Receives bytes from the other rank.
    ///
    /// # Safety
    /// The same as for sending, and nothing else uses the memory until then.
    unsafe fn receive(&self, into: u64, bytes: usize, stream: Stream) -> Result<()>;
}

/// A communicator of two ranks, with the index of the other one.
pub(super) struct Pair {
    pub comm: Arc<Communicator>,
    pub other: usize,
}

// SAFETY: NCCL copies exactly the requested bytes, in stream order.
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

/// A shared point of a stream, destroyed when the last reference is dropped.
pub(super) struct Point {
    driver: Arc<dyn Driver>,
    pub event: Event,
}

impl Point {
    /// The current point of a stream.
    pub fn of(driver: &Arc<dyn Driver>, stream: Stream) -> Result<Arc<Point>> {
        let point = Point { driver: driver.clone(), event: driver.event(false)? };
        driver.record(point.event, stream)?;
        Ok(Arc::new(point))
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // There is no caller to report to.
        let _ = self.driver.end_event(self.event);
    }
}

/// One direction. Lives until its carrier has ended, as NCCL may still enqueue requested work on its stream.
pub(super) struct Line {
    driver: Arc<dyn Driver>,
    carrier: Arc<dyn Carrier>,
    stream: Stream,
    /// Device memory in which rows with gaps are packed, allocated on first use.
    staging: OnceLock<u64>,
    /// Memory for the first byte.
    first: OnceLock<u64>,
}

impl Line {
    /// Creates a direction with its own stream.
    ///
    /// # Errors
    /// If the driver has no more streams.
    pub fn new(driver: &Arc<dyn Driver>, carrier: Arc<dyn Carrier>) -> Result<Line> {
        let stream = driver.stream()?;
        let (staging, first) = (OnceLock::new(), OnceLock::new());
        Ok(Line { driver: driver.clone(), carrier, stream, staging, first })
    }

    /// Sends rows after the current point of stream `after`; returns the point of completion.
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

    /// Receives into contiguous memory after `free`, and makes `before` wait for it; `is_cut` if the message was sent
    /// in pieces. Returns the point of completion.
    ///
    /// # Safety
    /// The memory lives until then, and nothing else uses it.
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

    /// Transfers a first byte and waits for it: NCCL connects two ranks on their first transfer, and blocks both
    /// meanwhile.
    ///
    /// # Errors
    /// If no process responds.
    pub fn warm(&self, sends: bool) -> Result<()> {
        let at = self.memory(&self.first, 1)?;
        // SAFETY: one byte of memory, which lives as long as the stream.
        unsafe {
            if sends {
                self.carrier.send(at, 1, self.stream)?
            } else {
                self.carrier.receive(at, 1, self.stream)?
            }
        }
        self.finish()
    }

    /// Waits on the host for all of the direction's messages.
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
        // There is no caller to report to.
        let _ = self.finish().and_then(|()| driver.end_stream(self.stream));
        for at in [&self.staging, &self.first].into_iter().filter_map(OnceLock::get) {
            let _ = driver.free(*at);
        }
    }
}
