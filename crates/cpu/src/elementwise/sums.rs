//! Sums over rows, over a vector, and of squares.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, run, sum_one};
use super::norm_backward::add_to;
use crate::mat::{Elem, Mat, MatMut};
use fathom_tensor::SUM_CHUNK;
use std::marker::PhantomData;
use std::ops::Range;

/// Columns summed at a time.
const BLOCK: usize = 512;

struct Columns<T> {
    rows: usize,
    dy: Mat,
    sums: MatMut,
    types: PhantomData<fn(T)>,
}

/// `dbias += sum over rows of dy`, per column in ascending chunks; `dbias` is f32 `[1, cols]`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn bias_backward(place: Place<'_>, rows: usize, cols: usize, dy: Mat, dbias: MatMut) {
    assert!(dbias.elem == Elem::F32, "bias backward: the gradient is f32");
    let grain = cols.div_ceil(place.threads.count()).next_multiple_of(64).min(BLOCK);
    let bytes = rows * dy.elem.bytes();
    // SAFETY: the caller's promise; columns are disjoint.
    by_elem!(dy.elem, T => unsafe {
        run(place, &Columns::<T> { rows, dy, sums: dbias, types: PhantomData }, cols, grain, bytes)
    });
}

impl<T: Float> Kernel for Columns<T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        for from in part.clone().step_by(BLOCK) {
            let width = BLOCK.min(part.end - from);
            for start in (0..self.rows).step_by(SUM_CHUNK) {
                let mut sums = [0.0f32; BLOCK];
                let sums = &mut sums[..width];
                for row in start..(start + SUM_CHUNK).min(self.rows) {
                    // SAFETY: rows and columns named by the caller.
                    let dy = unsafe { &self.dy.row::<T>(row, from + width)[from..] };
                    for (sum, dy) in sums.iter_mut().zip(dy) {
                        *sum += dy.wide();
                    }
                }
                // SAFETY: these columns belong to this call.
                unsafe { add_to(&self.sums, from, sums) }
            }
        }
    }
}

/// The sum of `x`, continued from `start`, in ascending chunks of [`SUM_CHUNK`] elements. Cutting `x` at a multiple of
/// the chunk changes no bit.
pub fn sum(x: &[f32], start: f32) -> f32 {
    x.chunks(SUM_CHUNK).fold(start, |total, chunk| total + sum_one(chunk, |x| x))
}

/// Parts of a sum of squares, independent of the number of threads.
const PARTS: usize = 64;

struct Squares<'a> {
    x: &'a [f32],
    part: usize,
    sums: *mut f64,
}

// SAFETY: each task writes only the sums of its own parts.
unsafe impl Sync for Squares<'_> {}

/// The sum of squares: f32 over 1024 elements, f64 over those sums, in parts that depend only on the length. NaN or
/// infinite if an element is, and infinite if elements exceed 1e19.
///
/// # Safety
/// The processor has `place.isa`.
pub unsafe fn sum_squares(place: Place<'_>, x: &[f32]) -> f64 {
    let mut sums = [0.0f64; PARTS];
    let part = x.len().div_ceil(PARTS).next_multiple_of(1024);
    let count = x.len().div_ceil(part.max(1));
    // SAFETY: `count` <= PARTS; parts are disjoint.
    unsafe { run(place, &Squares { x, part, sums: sums.as_mut_ptr() }, count, 1, part * 4) };
    sums.iter().sum()
}

impl Kernel for Squares<'_> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, parts: Range<usize>) {
        for part in parts {
            let x = &self.x[part * self.part..((part + 1) * self.part).min(self.x.len())];
            let total: f64 = x.chunks(1024).map(|x| sum_one(x, |x| x * x) as f64).sum();
            // SAFETY: part < PARTS, and the part is this task's own.
            unsafe { *self.sums.add(part) = total }
        }
    }
}
