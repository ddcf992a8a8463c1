//! Tensors that others read while the compute stream continues: host threads through a separate stream, and other ranks
//! of the device with copies that never leave it.
//!
//! Copies for other ranks are issued by the receiving rank on its exchange stream, after the sender's elements are
//! ready and the receiver's tensor is free. The end of a copy is an event that both wait for on the device: the
//! receiver's compute stream at once, the sender's when the share ends, before anything may be written there. No host
//! waits for any of it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use fathom_tensor::{Reader, Share, Tensor};

use super::Streams;
use crate::Result;
use crate::driver::{Event, Rows, Way};
use crate::operand::output;

/// Location of a tensor's elements, and the event after which they are ready.
struct Source {
    streams: Arc<Streams>,
    ready: Event,
    rows: Rows,
    element: usize,
    /// Ends of copies that other ranks issued.
    taken: Mutex<Vec<Event>>,
}

impl Source {
    fn read(&self, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let from = Rows {
            address: self.rows.address
                + (rows.start * self.rows.stride_bytes + cols.start * self.element) as u64,
            rows: rows.len(),
            row_bytes: cols.len() * self.element,
            stride_bytes: self.rows.stride_bytes,
        };
        let begin = out.len();
        out.resize(begin + from.bytes(), 0);
        let to = from.packed_at(out[begin..].as_mut_ptr().expose_provenance() as u64);
        let (driver, down) = (&self.streams.driver, self.streams.down);
        driver.wait(down, self.ready)?;
        // SAFETY: `Reader::read` has checked the ranges against the tensor's shape; the share keeps its storage and
        // forbids writing; the vector is large enough and is waited for.
        unsafe { driver.copy(Way::Down, from, to, down)? };
        driver.synchronise(down)
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Vec<Event>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the sender's compute stream wait for other ranks' copies.
    fn give_back(&self) {
        let driver = &self.streams.driver;
        for event in self.taken().drain(..) {
            // A device that has failed reports it where results are waited for; here there is no caller to report to.
            let compute = self.streams.compute("another rank has read");
            let _ = compute
                .and_then(|compute| driver.wait(compute, event))
                .and_then(|()| driver.end_event(event));
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.streams.driver.end_event(self.ready);
    }
}

/// Lets others read the elements of `src` as they are at this point of the compute stream.
///
/// # Errors
/// If the device has failed.
pub fn share(streams: &Arc<Streams>, src: &Tensor) -> Result<(Share, Reader)> {
    let ready = streams.driver.event(false)?;
    let rows = Rows::of(src, src.address());
    let (element, taken) = (src.dtype().bytes(), Mutex::default());
    let source = Arc::new(Source { streams: streams.clone(), ready, rows, element, taken });
    streams.driver.record(ready, streams.compute("somebody else reads")?)?;
    let ended = source.clone();
    let (share, pass) = Share::begin_until(src, move || ended.give_back());
    let origin = source.clone();
    let reader = Reader::new(src, pass, move |rows, cols, out| {
        if let Err(error) = source.read(rows, cols, out) {
            panic!("read of a shared tensor: {error}");
        }
    });
    Ok((share, reader.with_origin(origin)))
}

/// Copies a tensor shared by another rank of this device into `dst`, after `fence`; returns false if it is on another
/// device.
///
/// # Errors
/// If the device has failed.
///
/// # Panics
/// If `dst` has gaps or a different number of bytes.
#[track_caller]
pub fn take(streams: &Streams, from: &Reader, dst: &Tensor, fence: u64) -> Result<bool> {
    let source = from.origin().and_then(|origin| origin.downcast_ref::<Source>());
    let Some(source) = source.filter(|source| source.streams.driver.space() == streams.driver.space()) else {
        return Ok(false);
    };
    let fits = dst.is_contiguous() && dst.bytes() == source.rows.bytes() as u64;
    assert!(fits, "take: {dst:?} of {:?}", source.rows);
    let (driver, exchange) = (&streams.driver, streams.exchange);
    driver.wait(exchange, streams.event(fence))?;
    driver.wait(exchange, source.ready)?;
    // SAFETY: both tensors live: the sender's until its share has ended and its stream has passed the event below, the
    // receiver's in the order of its compute stream, which also waits for the event; both have the same size.
    unsafe { driver.copy(Way::Across, source.rows, source.rows.packed_at(output(dst)), exchange)? };
    let done = driver.event(false)?;
    driver.record(done, exchange)?;
    driver.wait(streams.compute("another rank's tensor comes")?, done)?;
    source.taken().push(done);
    Ok(true)
}
