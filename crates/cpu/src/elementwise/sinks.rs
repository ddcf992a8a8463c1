//! The gradient of an attention's sinks, the logits that join every denominator.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, run, sum_three};
use crate::mat::{Elem, Mat};
use fathom_tensor::SUM_CHUNK;
use std::marker::PhantomData;
use std::ops::Range;

/// See [`fathom_tensor::SinksBackward`].
#[derive(Clone, Copy, Debug)]
pub struct SinksBackward<'a> {
    /// Tokens.
    pub rows: usize,
    /// Heads.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// `[rows, heads * head_dim]`.
    pub out: Mat,
    /// Like out.
    pub dout: Mat,
    /// f32 `[rows, heads]`.
    pub lse: Mat,
    /// `[heads]`.
    pub sinks: &'a [f32],
    /// `[heads]`, added to.
    pub dsinks: *mut f32,
}

struct Heads<'a, T>(&'a SinksBackward<'a>, PhantomData<fn(T)>);

// SAFETY: each task writes only the gradients of its own heads.
unsafe impl<T> Sync for Heads<'_, T> {}

/// Adds to `op.dsinks`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn sinks_backward(place: Place<'_>, op: &SinksBackward<'_>) {
    let fits = op.out.elem == op.dout.elem && op.lse.elem == Elem::F32 && op.sinks.len() == op.heads;
    assert!(fits, "sinks backward: storage of {op:?}");
    let bytes = op.rows * op.head_dim * op.out.elem.bytes() * 2;
    // SAFETY: the caller's promise; heads are disjoint.
    by_elem!(op.out.elem, T => unsafe { run(place, &Heads::<T>(op, PhantomData), op.heads, 1, bytes) });
}

impl<T: Float> Kernel for Heads<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for head in part {
            let cols = head * op.head_dim..(head + 1) * op.head_dim;
            for start in (0..op.rows).step_by(SUM_CHUNK) {
                let mut sum = 0.0f32;
                for row in start..(start + SUM_CHUNK).min(op.rows) {
                    // SAFETY: rows and columns named by the descriptor.
                    let (out, dout, lse) = unsafe {
                        let lse = op.lse.row::<f32>(row, op.heads)[head];
                        (op.out.row::<T>(row, cols.end), op.dout.row::<T>(row, cols.end), lse)
                    };
                    if lse != f32::NEG_INFINITY {
                        let (out, dout) = (&out[cols.clone()], &dout[cols.clone()]);
                        sum += (op.sinks[head] - lse).exp() * sum_three(out, dout, out, |a, b, _| a * b);
                    }
                }
                // SAFETY: this head belongs to this call. Accumulates on the previous value, so that micro-batches of
                // whole chunks add up to the same bits as one batch.
                unsafe { *op.dsinks.add(head) -= sum }
            }
        }
    }
}
