//! Counter-based dropout.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, run};
use crate::mat::MatMut;
use fathom_tensor::Dropout;
use std::marker::PhantomData;
use std::ops::Range;

struct Rows<'a, T> {
    cols: usize,
    x: MatMut,
    keys: &'a [i32],
    how: Dropout,
    types: PhantomData<fn(T)>,
}

/// `x[r, c] *= factor`, or zero where dropped.
///
/// # Safety
/// See the module documentation.
pub unsafe fn dropout(place: Place<'_>, cols: usize, x: MatMut, keys: &[i32], how: Dropout) {
    let bytes = 2 * cols * x.elem.bytes();
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(x.elem, T => unsafe {
        run(place, &Rows::<T> { cols, x, keys, how, types: PhantomData }, keys.len(), 1, bytes)
    });
}

impl<T: Float> Kernel for Rows<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        for row in part {
            // SAFETY: rows and columns named by the caller.
            for (col, x) in unsafe { self.x.row::<T>(row, self.cols) }.iter_mut().enumerate() {
                let stays =
                    if self.how.drops(self.keys[row], col) { 0.0 } else { self.how.factor * x.wide() };
                *x = T::narrow(stays);
            }
        }
    }
}
