//! Tensors that other threads read while the compute stream goes on.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use fathom_tensor::{Reader, Share, Tensor};

use super::Streams;
use crate::Result;
use crate::driver::{Event, Rows, Way};

/// Where a tensor's elements are, and from when on.
struct Source {
    streams: Arc<Streams>,
    ready: Event,
    start: u64,
    element: usize,
    stride: usize,
}

impl Source {
    fn read(&self, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let at = (rows.start * self.stride + cols.start) * self.element;
        let from = Rows {
            address: self.start + at as u64,
            rows: rows.len(),
            row_bytes: cols.len() * self.element,
            stride_bytes: self.stride * self.element,
        };
        let begin = out.len();
        out.resize(begin + from.bytes(), 0);
        let to = from.packed_at(out[begin..].as_mut_ptr().expose_provenance() as u64);
        let (driver, down) = (&self.streams.driver, self.streams.down);
        driver.wait(down, self.ready)?;
        // SAFETY: `Reader::read` has checked the ranges against the tensor's shape; the share keeps its storage and
        // forbids writing; the vector has room, and is waited for.
        unsafe { driver.copy(Way::Down, from, to, down)? };
        driver.synchronise(down)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.streams.driver.end_event(self.ready);
    }
}

/// Lets other threads read the elements of `src` as they are at this point of the compute stream.
///
/// # Errors
/// If the device has failed.
pub fn share(streams: &Arc<Streams>, src: &Tensor) -> Result<(Share, Reader)> {
    let ready = streams.driver.event(false)?;
    let source = Source {
        streams: streams.clone(),
        ready,
        start: src.address(),
        element: src.dtype().bytes(),
        stride: src.stride(),
    };
    streams.driver.record(ready, streams.compute)?;
    let (share, pass) = Share::begin(src);
    let reader = Reader::new(src, pass, move |rows, cols, out| {
        if let Err(error) = source.read(rows, cols, out) {
            panic!("read of a shared tensor: {error}");
        }
    });
    Ok((share, reader))
}
