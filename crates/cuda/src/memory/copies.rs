//! Copies by worker threads that bypass the compute stream, for [`fathom_tensor::spill`].
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fathom_tensor::spill::{Copies, HostBuffer, Region};

use super::Streams;
use crate::Result;
use crate::driver::{Rows, Stream, Way};

/// Copies for a device whose memory host threads cannot reach: everything goes through pinned staging.
pub struct DeviceCopies {
    streams: Arc<Streams>,
    /// Bytes of host memory pinned.
    pinned: AtomicU64,
    /// Reported once pinning fails.
    said: OnceLock<String>,
}

impl DeviceCopies {
    /// Copies of a rank's tensors.
    pub fn new(streams: Arc<Streams>) -> DeviceCopies {
        DeviceCopies { streams, pinned: AtomicU64::new(0), said: OnceLock::new() }
    }

    /// Copies bytes of a region from or to the host, starting at `at` of its rows laid end to end.
    fn run(&self, way: Way, region: &Region, at: usize, host: u64, bytes: usize) -> Result<()> {
        let streams = &*self.streams;
        let driver = &streams.driver;
        let stream: Stream = if way == Way::Up { streams.up } else { streams.down };
        driver.wait(stream, streams.event(region.fence))?;
        let Region { address, rows, row_bytes, stride_bytes, .. } = *region;
        for (device, position) in cut(&Rows { address, rows, row_bytes, stride_bytes }, at, bytes) {
            let packed = device.packed_at(host + position as u64);
            let (from, to) = if way == Way::Up { (packed, device) } else { (device, packed) };
            // SAFETY: the caller of `fetch` or `store` holds both sides until this method returns, which waits below.
            unsafe { driver.copy(way, from, to, stream)? };
        }
        let done = driver.event(false)?;
        let waited = driver.record(done, stream).and_then(|()| driver.join(done));
        driver.end_event(done)?;
        waited
    }
}

/// The rectangles that hold bytes `at..at + bytes` of rows laid end to end, each with the position of its first byte:
/// the rest of a row, whole rows, the start of a row.
pub fn cut(rows: &Rows, at: usize, bytes: usize) -> Vec<(Rows, usize)> {
    let Rows { address, row_bytes, stride_bytes, .. } = *rows;
    if rows.is_flat() {
        return vec![(Rows::flat(address + at as u64, bytes), 0)];
    }
    let mut parts = Vec::new();
    let mut done = 0;
    while done < bytes {
        let (row, column) = ((at + done) / row_bytes, (at + done) % row_bytes);
        let start = address + (row * stride_bytes + column) as u64;
        let left = bytes - done;
        let part = if column > 0 || left < row_bytes {
            Rows { address: start, rows: 1, row_bytes: left.min(row_bytes - column), stride_bytes }
        } else {
            Rows { address: start, rows: left / row_bytes, row_bytes, stride_bytes }
        };
        parts.push((part, done));
        done += part.bytes();
    }
    parts
}

/// # Panics
/// With the driver's message, which a worker reports as the engine's failure.
fn must(result: Result<()>, what: &str) {
    if let Err(error) = result {
        panic!("{what}: {error}");
    }
}

/// Pinned host memory.
struct Pinned {
    streams: Arc<Streams>,
    address: u64,
}

// SAFETY: the driver pinned this many bytes, and they stay valid until the drop.
unsafe impl HostBuffer for Pinned {
    fn start(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The memory is released at the latest when the process ends.
        let _ = self.streams.driver.unpin(self.address);
    }
}

// SAFETY: no address is exposed; the copies move exactly the requested bytes of the region.
unsafe impl Copies for DeviceCopies {
    fn host(&self, _: u64) -> Option<*mut u8> {
        None
    }

    fn staging(&self, bytes: usize) -> Option<Box<dyn HostBuffer>> {
        let streams = self.streams.clone();
        match streams.driver.pin(bytes) {
            Ok(address) => {
                self.pinned.fetch_add(bytes as u64, Ordering::Relaxed);
                Some(Box::new(Pinned { streams, address }))
            }
            Err(error) => {
                self.said.get_or_init(|| {
                    let pinned = self.pinned.load(Ordering::Relaxed);
                    let line = format!(
                        "{pinned} bytes of the host are pinned and no {bytes} more, what goes beyond is copied more slowly: {error}"
                    );
                    log::warn!("{line}");
                    line
                });
                None
            }
        }
    }

    fn fence(&self) -> u64 {
        match self.streams.fence() {
            Ok(fence) => fence,
            Err(error) => panic!("spill: {error}"),
        }
    }

    unsafe fn fetch(&self, from: &Region, at: usize, into: &mut [u8]) {
        let (host, bytes) = (into.as_mut_ptr().expose_provenance() as u64, into.len());
        must(self.run(Way::Down, from, at, host, bytes), "copy from the device");
    }

    unsafe fn store(&self, into: &Region, at: usize, from: &[u8]) {
        let (host, bytes) = (from.as_ptr().expose_provenance() as u64, from.len());
        must(self.run(Way::Up, into, at, host, bytes), "copy to the device");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::fake::Fake;

    #[test]
    fn that_no_more_is_pinned_is_said_once() {
        let streams = Arc::new(Streams::new(Arc::new(Fake::new(1 << 20).with_pinnable(3000))).unwrap());
        let copies = DeviceCopies::new(streams);
        let held = [1000, 2000, 1, 500].map(|bytes| copies.staging(bytes));
        assert_eq!(held.map(|held| held.is_some()), [true, true, false, false]);
        let said = copies.said.get().unwrap();
        assert!(said.starts_with("3000 bytes of the host are pinned and no 1 more"), "{said}");
    }

    #[test]
    fn cuts_cover_every_byte_once() {
        let region = Rows { address: 1000, rows: 5, row_bytes: 7, stride_bytes: 10 };
        let expected: Vec<u64> = (0..35).map(|at| 1000 + at / 7 * 10 + at % 7).collect();
        for at in 0..35 {
            for bytes in 1..=35 - at {
                let parts = cut(&region, at, bytes);
                let mut seen = vec![0; bytes];
                for (rows, position) in &parts {
                    for index in 0..rows.bytes() {
                        let (row, column) = (index / rows.row_bytes, index % rows.row_bytes);
                        seen[position + index] = rows.address + (row * rows.stride_bytes + column) as u64;
                    }
                }
                assert_eq!(seen, expected[at..at + bytes], "{at} {bytes}");
                assert!(parts.len() <= 3);
            }
        }
    }
}
