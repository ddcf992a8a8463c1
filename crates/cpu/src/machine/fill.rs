//! Tensors filled by several threads in parallel, straight into the pool's memory.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use fathom_tensor::Tensor;

use super::operands::start_mut;

/// Least number of threads: they wait for disks more than they compute (for cold files on two cores, four take 0.8 of
/// the time of two).
const THREADS: usize = 4;

/// Location of a tensor's elements.
struct Target {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: only the thread that takes its group dereferences the pointer.
unsafe impl Sync for Target {}

/// Calls `fill(index, elements)` once for each group of tensors.
///
/// # Panics
/// If rows of a tensor have gaps between them, or two tensors overlap.
#[track_caller]
pub fn fill(threads: usize, dst: &[Vec<Tensor>], fill: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync)) {
    let target = |tensor: &Tensor| {
        assert!(tensor.is_contiguous(), "fill: {tensor:?} has gaps");
        Target { start: start_mut(tensor), bytes: tensor.bytes() as usize }
    };
    let groups: Vec<Vec<Target>> = dst.iter().map(|group| group.iter().map(target).collect()).collect();
    let mut ranges: Vec<(usize, usize)> =
        groups.iter().flatten().map(|target| (target.start as usize, target.bytes)).collect();
    ranges.retain(|(_, bytes)| *bytes > 0);
    ranges.sort_unstable();
    let apart = ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0);
    assert!(apart, "fill: two of {} tensors overlap", ranges.len());
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = groups.get(task) else { return };
            let slice = |target: &Target| {
                // SAFETY: the tensor is borrowed for the whole call, so its storage stays charged; it has no gaps and
                // does not overlap the others, and each group is given to one thread, which takes each of its targets
                // once. The mapping's bytes are zero before they are first written, so they are initialised. The
                // issuing thread is in this call and uses no tensor meanwhile: tensors cannot be sent to the threads
                // that `fill` runs on.
                unsafe { std::slice::from_raw_parts_mut(target.start, target.bytes) }
            };
            let mut elements: Vec<&mut [u8]> = group.iter().map(slice).collect();
            fill(task, &mut elements);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(THREADS).min(groups.len()) {
            scope.spawn(work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fathom_tensor::{Category, DType, Device};

    use crate::Cpu;

    #[test]
    fn every_tensor_is_filled_once() {
        for threads in [1, 3] {
            let device = Device::new(Arc::new(Cpu::new(threads, None)), 1 << 24);
            let whole = device.zeros(40, 25, DType::F32, Category::Data);
            let row = |row| whole.view_rows(row..row + 1);
            let groups: Vec<Vec<_>> = (0..10).map(|at| (4 * at..4 * at + 4).map(row).collect()).collect();
            device.machine.fill(&groups, &|index, rows| {
                for (row, bytes) in rows.iter_mut().enumerate() {
                    for (at, out) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        let before = f32::from_le_bytes(*out);
                        *out = (before + (25 * (4 * index + row) + at) as f32).to_le_bytes();
                    }
                }
            });
            let expected: Vec<f32> = (0..1000).map(|at| at as f32).collect();
            assert_eq!(device.to_f32(&whole), expected);
        }
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn overlapping_tensors_are_refused() {
        let device = Device::new(Arc::new(Cpu::new(2, None)), 1 << 24);
        let whole = device.zeros(4, 8, DType::F32, Category::Data);
        device.machine.fill(&[vec![whole.view_rows(0..2)], vec![whole.view_rows(1..3)]], &|_, _| {});
    }
}
