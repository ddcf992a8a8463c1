//! Sums of experts' results over the slots of a token, with their gradients, and gathering of rows by expert.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, madd, run, sum_three};
use crate::mat::{Elem, Mat, MatMut};
use std::marker::PhantomData;
use std::ops::Range;

/// `out = sum over slots of weight x y`; see [`fathom_tensor::Combine`].
#[derive(Clone, Copy, Debug)]
pub struct Combine {
    /// Tokens.
    pub rows: usize,
    /// Slots per token.
    pub slots: usize,
    /// Columns of the result.
    pub cols: usize,
    /// `[rows, slots x cols]`.
    pub y: Mat,
    /// f32 `[rows, slots]`.
    pub weights: Option<Mat>,
    /// `[rows, cols]`, stored like y.
    pub out: MatMut,
}

/// The backward pass of [`Combine`].
#[derive(Clone, Copy, Debug)]
pub struct CombineBackward {
    /// Tokens.
    pub rows: usize,
    /// Slots per token.
    pub slots: usize,
    /// Columns of the result.
    pub cols: usize,
    /// `[rows, slots x cols]`.
    pub y: Mat,
    /// f32 `[rows, slots]`.
    pub weights: Mat,
    /// `[rows, cols]`, stored like y.
    pub dout: Mat,
    /// `[rows, slots x cols]`, stored like y, overwritten.
    pub dy: Option<MatMut>,
    /// f32 `[rows, slots]`, overwritten.
    pub dweights: Option<MatMut>,
}

/// Columns summed at a time.
const BLOCK: usize = 512;

struct Forward<'a, T>(&'a Combine, PhantomData<fn(T)>);

/// Computes `op.out`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn combine(place: Place<'_>, op: &Combine) {
    let fits = op.y.elem == op.out.elem && op.weights.is_none_or(|weights| weights.elem == Elem::F32);
    assert!(fits, "combine: storage of {op:?}");
    let bytes = op.cols * op.y.elem.bytes() * (op.slots + 1);
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(op.y.elem, T => unsafe { run(place, &Forward::<T>(op, PhantomData), op.rows, 1, bytes) });
}

impl<T: Float> Kernel for Forward<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (y, out, weights) = unsafe {
                (
                    op.y.row::<T>(row, op.slots * op.cols),
                    op.out.row::<T>(row, op.cols),
                    op.weights.as_ref().map(|weights| weights.row::<f32>(row, op.slots)),
                )
            };
            for from in (0..op.cols).step_by(BLOCK) {
                let width = BLOCK.min(op.cols - from);
                let mut sums = [0.0f32; BLOCK];
                let sums = &mut sums[..width];
                for slot in 0..op.slots {
                    let weight = weights.map_or(1.0, |weights| weights[slot]);
                    let y = &y[slot * op.cols + from..][..width];
                    for (sum, y) in sums.iter_mut().zip(y) {
                        *sum = madd::<L>(weight, y.wide(), *sum);
                    }
                }
                for (out, sum) in out[from..from + width].iter_mut().zip(sums.iter()) {
                    *out = T::narrow(*sum);
                }
            }
        }
    }
}

struct Backward<'a, T>(&'a CombineBackward, PhantomData<fn(T)>);

/// Computes `op.dy` and `op.dweights`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn combine_backward(place: Place<'_>, op: &CombineBackward) {
    let elem = op.y.elem;
    let fits = op.dout.elem == elem
        && op.weights.elem == Elem::F32
        && op.dy.is_none_or(|dy| dy.elem == elem)
        && op.dweights.is_none_or(|dweights| dweights.elem == Elem::F32);
    assert!(fits, "combine backward: storage of {op:?}");
    let bytes = op.cols * elem.bytes() * (2 * op.slots + 1);
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(elem, T => unsafe { run(place, &Backward::<T>(op, PhantomData), op.rows, 1, bytes) });
}

impl<T: Float> Kernel for Backward<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (weights, dout) =
                unsafe { (op.weights.row::<f32>(row, op.slots), op.dout.row::<T>(row, op.cols)) };
            if let Some(dweights) = &op.dweights {
                // SAFETY: as above.
                let (y, dweights) =
                    unsafe { (op.y.row::<T>(row, op.slots * op.cols), dweights.row::<f32>(row, op.slots)) };
                for (slot, dweight) in dweights.iter_mut().enumerate() {
                    let y = &y[slot * op.cols..(slot + 1) * op.cols];
                    *dweight = sum_three(dout, y, y, |dout, y, _| dout * y);
                }
            }
            if let Some(dy) = &op.dy {
                // SAFETY: as above.
                let dy = unsafe { dy.row::<T>(row, op.slots * op.cols) };
                for (slot, dy) in dy.chunks_exact_mut(op.cols).enumerate() {
                    for (dy, dout) in dy.iter_mut().zip(dout) {
                        *dy = T::narrow(weights[slot] * dout.wide());
                    }
                }
            }
        }
    }
}

/// Rows of an expert, each a token and a slot, to be gathered or scattered.
#[derive(Clone, Copy, Debug)]
pub struct ExpertRows<'a> {
    /// `token x slots + slot` of each row; below zero for a row of zeros.
    pub rows: &'a [i32],
    /// Slots per token.
    pub slots: usize,
    /// Columns per row.
    pub cols: usize,
    /// `[tokens, slots x cols]`; `[tokens, cols]` for `shared`.
    pub apart: MatMut,
    /// True if a token's slots share one row; only for [`gather`].
    pub shared: bool,
    /// `[rows, cols]`, stored alike.
    pub together: MatMut,
}

impl ExpertRows<'_> {
    /// Byte offset of a row.
    #[inline(always)]
    fn at(&self, row: i32) -> usize {
        let (token, slot) = (row as usize / self.slots, row as usize % self.slots);
        let col = if self.shared { 0 } else { slot * self.cols };
        (token * self.apart.stride + col) * self.apart.elem.bytes()
    }

    /// Bytes of a row.
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.cols * self.apart.elem.bytes()
    }

    /// Address of a row of `together`.
    #[inline(always)]
    fn row(&self, row: usize) -> *mut u8 {
        self.together.ptr.wrapping_add(row * self.together.stride * self.together.elem.bytes())
    }
}

struct Gather<'a>(&'a ExpertRows<'a>);
struct Scatter<'a>(&'a ExpertRows<'a>);

/// `together[i] = apart[rows[i]]`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn gather(place: Place<'_>, op: &ExpertRows<'_>) {
    // SAFETY: the caller's promise; rows are disjoint.
    unsafe { run(place, &Gather(op), op.rows.len(), 1, 2 * op.bytes()) }
}

/// `apart[rows[i]] = together[i]`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn scatter(place: Place<'_>, op: &ExpertRows<'_>) {
    // SAFETY: the caller's promise; no two rows are for the same slot.
    unsafe { run(place, &Scatter(op), op.rows.len(), 1, 2 * op.bytes()) }
}

impl Kernel for Gather<'_> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for row in part {
            let to = op.row(row);
            // SAFETY: rows and columns named by the descriptor.
            unsafe {
                match op.rows[row] {
                    ..0 => to.write_bytes(0, op.bytes()),
                    from => std::ptr::copy_nonoverlapping(op.apart.ptr.add(op.at(from)), to, op.bytes()),
                }
            }
        }
    }
}

impl Kernel for Scatter<'_> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for row in part {
            let (from, to) = (op.row(row).cast_const(), op.at(op.rows[row]));
            // SAFETY: rows and columns named by the descriptor; only this call writes the slot.
            unsafe { std::ptr::copy_nonoverlapping(from, op.apart.ptr.add(to), op.bytes()) };
        }
    }
}
