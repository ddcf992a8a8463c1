//! Tensors filled by several host threads in parallel, each group in a buffer that is then copied.
#![allow(unsafe_code)]

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use fathom_tensor::Tensor;

use super::Streams;
use crate::driver::{Rows, Way};
use crate::operand::output;
use crate::{Error, Result};

/// Number of threads: at least this many, as they wait for disks and the link, and at most, as each has a buffer; in
/// between the host's number of cores, as they also convert data and draw random numbers.
const THREADS: RangeInclusive<usize> = 4..=16;

/// Calls `fill(index, elements)` once for each group of tensors.
///
/// # Errors
/// If the device has failed.
///
/// # Panics
/// If rows of a tensor have gaps between them, or two tensors overlap.
#[track_caller]
pub fn fill(
    streams: &Streams,
    dst: &[Vec<Tensor>],
    fill: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync),
) -> Result<()> {
    let target = |tensor: &Tensor| {
        assert!(tensor.is_contiguous(), "fill: {tensor:?} has gaps");
        Rows::flat(output(tensor), tensor.bytes() as usize)
    };
    let groups: Vec<Vec<Rows>> = dst.iter().map(|group| group.iter().map(target).collect()).collect();
    let mut ranges: Vec<Rows> = groups.iter().flatten().copied().collect();
    ranges.retain(|range| range.row_bytes > 0);
    ranges.sort_unstable_by_key(|range| range.address);
    let apart = ranges.windows(2).all(|pair| pair[0].address + pair[0].row_bytes as u64 <= pair[1].address);
    assert!(apart, "fill: two of {} tensors overlap", ranges.len());
    // Earlier work may still use the destination.
    streams.synchronise()?;
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None::<Error>));
    let work = || {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = groups.get(task) else { return };
            if let Err(error) = one(streams, group, |elements| fill(task, elements)) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.clamp(*THREADS.start(), *THREADS.end());
    std::thread::scope(|scope| {
        for _ in 1..threads.min(groups.len()) {
            scope.spawn(work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn one(streams: &Streams, group: &[Rows], fill: impl FnOnce(&mut [&mut [u8]])) -> Result<()> {
    let mut buffers: Vec<Vec<u8>> = group.iter().map(|rows| vec![0; rows.row_bytes]).collect();
    let mut elements: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    fill(&mut elements);
    let driver = &streams.driver;
    for (rows, buffer) in group.iter().zip(&buffers) {
        let from = Rows::flat(buffer.as_ptr().expose_provenance() as u64, buffer.len());
        // SAFETY: the tensors are borrowed by the caller, no issued work uses them any more, and the buffers live until
        // the copies have ended.
        unsafe { driver.copy(Way::Up, from, *rows, streams.up)? };
    }
    driver.synchronise(streams.up)
}
