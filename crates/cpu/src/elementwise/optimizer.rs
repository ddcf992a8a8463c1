//! AdamW and the factor that scales a step's gradient.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use fathom_tensor::moments::BLOCK;

use super::Place;
use super::coded::Blocks;
use super::level::{by_elem, run};
use super::update::{AdamW, PIECE, Update};

/// Updates `param`, `master`, `m` and `v`.
///
/// # Safety
/// See the module documentation; each pointer leads to `count` elements, `scale` and `skip` to one.
pub unsafe fn adamw(place: Place<'_>, op: &AdamW) {
    // SAFETY: one element each.
    let (scale, skip) = unsafe { (*op.scale, *op.skip) };
    if skip != 0.0 {
        return;
    }
    if let Some(scales) = op.scales {
        // SAFETY: the caller's promise; blocks are disjoint.
        return by_elem!(op.elem, T => unsafe {
            let update = Update::<T, f32> { op, scale, types: PhantomData };
            run(place, &Blocks { update, scales }, op.count.div_ceil(BLOCK), 1, BLOCK * 12)
        });
    }
    // SAFETY: the caller's promise; pieces are disjoint.
    by_elem!(op.elem, T => by_elem!(op.moments, M => unsafe {
        let update = Update::<T, M> { op, scale, types: PhantomData };
        run(place, &update, op.count.div_ceil(PIECE), 1, PIECE * 24)
    }));
}

/// Scaling of a step's update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScale {
    /// `min(1, max_norm / norm) / count`; 0 without a valid token.
    pub scale: f32,
    /// 1 if loss or norm is not finite or there is no valid token, else 0.
    pub skip: f32,
    /// `sqrt(sum_squares) / count`: the norm of the mean's gradient.
    pub norm: f32,
}

/// Computed from the sum of squares of the gradient of the summed loss, the summed loss, and the number of valid
/// tokens. `max_norm` 0 means no clipping.
pub fn step_scale(sum_squares: f32, loss: f32, count: f32, max_norm: f32) -> StepScale {
    if count <= 0.0 {
        return StepScale { scale: 0.0, skip: 1.0, norm: 0.0 };
    }
    let norm = sum_squares.sqrt() / count;
    let clip = if max_norm > 0.0 && norm > max_norm { max_norm / norm } else { 1.0 };
    let finite = norm.is_finite() && loss.is_finite();
    StepScale { scale: if finite { clip / count } else { 0.0 }, skip: if finite { 0.0 } else { 1.0 }, norm }
}
