//! Noise added to rows.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, madd, run};
use crate::mat::MatMut;
use fathom_tensor::moments::noise;
use std::marker::PhantomData;
use std::ops::Range;

struct Rows<'a, T> {
    cols: usize,
    x: MatMut,
    keys: &'a [i32],
    scales: &'a [f32],
    types: PhantomData<fn(T)>,
}

/// `x[r, c] += scales[r] (2 u - 1)`, where `u` depends on the row's key and the column.
///
/// # Safety
/// See the module documentation.
pub unsafe fn jitter(place: Place<'_>, cols: usize, x: MatMut, keys: &[i32], scales: &[f32]) {
    let bytes = 2 * cols * x.elem.bytes();
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(x.elem, T => unsafe {
        run(place, &Rows::<T> { cols, x, keys, scales, types: PhantomData }, keys.len(), 1, bytes)
    });
}

impl<T: Float> Kernel for Rows<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        for row in part {
            let (key, scale) = (self.keys[row].cast_unsigned(), self.scales[row]);
            // SAFETY: rows and columns named by the caller.
            for (col, x) in unsafe { self.x.row::<T>(row, self.cols) }.iter_mut().enumerate() {
                let unit = noise(key, col as u32) as f32 * (1.0 / 524_288.0) - 1.0;
                *x = T::narrow(madd::<L>(scale, unit, x.wide()));
            }
        }
    }
}
