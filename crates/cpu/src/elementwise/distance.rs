//! Distances of rows from target rows, with their gradient.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, run, sum_three};
use crate::mat::{Mat, MatMut};
use fathom_tensor::Distance;
use std::marker::PhantomData;
use std::ops::Range;

/// See [`fathom_tensor::RowDistance`].
#[derive(Clone, Copy, Debug)]
pub struct RowDistance<'a> {
    /// Kind of distance.
    pub distance: Distance,
    /// Columns.
    pub cols: usize,
    /// `[rows, cols]`.
    pub x: Mat,
    /// `[rows, cols]`, stored like `x`.
    pub target: Mat,
    /// Below zero: ignored.
    pub labels: &'a [i32],
    /// Multiplies a row's gradient.
    pub weights: &'a [f32],
    /// Multiplies all gradients.
    pub factor: f32,
    /// f32 `[1, rows]`.
    pub loss: MatMut,
    /// `[rows, cols]`, stored like `x`; may be `target`.
    pub dx: MatMut,
}

struct Rows<'a, T>(&'a RowDistance<'a>, PhantomData<fn(T)>);

/// Writes the distances and the gradient.
///
/// # Safety
/// See the module documentation.
pub unsafe fn row_distance(place: Place<'_>, op: &RowDistance<'_>) {
    let alike = op.x.elem == op.target.elem && op.x.elem == op.dx.elem;
    let in_place = !std::ptr::eq(op.dx.ptr, op.target.ptr) || op.dx.stride == op.target.stride;
    assert!(alike && in_place && op.weights.len() == op.labels.len(), "row distance: storage of {op:?}");
    let bytes = op.cols * op.x.elem.bytes() * 4;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(op.x.elem, T => unsafe { run(place, &Rows::<T>(op, PhantomData), op.labels.len(), 1, bytes) });
}

/// Lower bound of a row's length.
const LEAST: f32 = 1e-8;

impl<T: Float> Kernel for Rows<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for row in part {
            // SAFETY: rows and columns named by the descriptor; only this call uses this row.
            unsafe {
                let (x, dx) = (op.x.row::<T>(row, op.cols), op.dx.row::<T>(row, op.cols));
                let loss = op.loss.ptr.cast::<f32>().add(row);
                if op.labels[row] < 0 {
                    *loss = 0.0;
                    dx.fill(T::narrow(0.0));
                    continue;
                }
                if !std::ptr::eq(op.dx.ptr, op.target.ptr) {
                    dx.copy_from_slice(op.target.row::<T>(row, op.cols));
                }
                *loss = self.row(x, dx, op.factor * op.weights[row]);
            }
        }
    }
}

impl<T: Float> Rows<'_, T> {
    /// The distance of `x` from `dx`, which is overwritten by the gradient times `by`.
    #[inline(always)]
    fn row(&self, x: &[T], dx: &mut [T], by: f32) -> f32 {
        if self.0.distance == Distance::Mse {
            let scale = 1.0 / self.0.cols as f32;
            let squares = sum_three(x, dx, dx, |x, t, _| (x - t) * (x - t));
            let by = 2.0 * by * scale;
            for (d, x) in dx.iter_mut().zip(x) {
                *d = T::narrow(by * (x.wide() - d.wide()));
            }
            return squares * scale;
        }
        let dot = sum_three(x, dx, dx, |x, t, _| x * t);
        let length = |squares: f32| {
            let root = squares.sqrt();
            if root > LEAST { root } else { LEAST }
        };
        let of_x = length(sum_three(x, x, x, |x, _, _| x * x));
        let of_t = length(sum_three(dx, dx, dx, |t, _, _| t * t));
        let cosine = dot / (of_x * of_t);
        let (along, towards) = (by * cosine / (of_x * of_x), by / (of_x * of_t));
        for (d, x) in dx.iter_mut().zip(x) {
            *d = T::narrow(along * x.wide() - towards * d.wide());
        }
        1.0 - cosine
    }
}
