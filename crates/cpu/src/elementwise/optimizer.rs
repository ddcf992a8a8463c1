//! AdamW and the factor that scales a step's gradient.
#![allow(unsafe_code)]

use super::Place;
use super::coded::{Blocks, Coded};
use super::level::{Float, Kernel, Level, by_elem, madd, run};
use crate::mat::Elem;
use fathom_tensor::moments::{BLOCK, noise};
use std::marker::PhantomData;
use std::ops::Range;

/// One AdamW update (Loshchilov and Hutter, 2019) of contiguous tensors, in PyTorch's order of operations; without a second moment
/// SGD with momentum.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Elements of each tensor.
    pub count: usize,
    /// Storage of `param`.
    pub elem: Elem,
    /// The weights, updated.
    pub param: *mut u8,
    /// Their f32 master copy, updated first; null if `param` itself is updated and, if narrow, rounded by noise.
    pub master: *mut f32,
    /// Storage of the moments, unless they are coded.
    pub moments: Elem,
    /// Of moments that are e4m3 codes.
    pub coded: Option<Coded>,
    /// Keys of the noise that rounds narrow first and second moments.
    pub keys: [u32; 2],
    /// Key of the noise that rounds narrow weights without a master.
    pub weight_key: u32,
    /// Which element of the weight the first one is.
    pub first: usize,
    /// First moment.
    pub m: *mut u8,
    /// Second moment; null for SGD with momentum.
    pub v: *mut u8,
    /// Gradient of the sum over tokens.
    pub grad: *const f32,
    /// Multiplies the gradient: one over the tokens, times the clip factor.
    pub scale: *const f32,
    /// Not zero leaves everything as it is.
    pub skip: *const f32,
    /// Learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root.
    pub eps: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// `1 - beta1^step`.
    pub correction1: f32,
    /// `1 - beta2^step`.
    pub correction2: f32,
}

/// An update of weights `T` with moments `M`.
pub(super) struct Update<'a, T, M> {
    pub op: &'a AdamW,
    scale: f32,
    types: PhantomData<fn(T, M)>,
}

// SAFETY: each task follows the pointers to its own elements only.
unsafe impl<T, M> Sync for Update<'_, T, M> {}

/// Elements handled as one piece.
const PIECE: usize = 1024;

/// Updates `param`, `master`, `m` and `v`.
///
/// # Safety
/// See the module's text; each pointer leads to `count` elements, `scale` and `skip` to one.
pub unsafe fn adamw(place: Place<'_>, op: &AdamW) {
    // SAFETY: one element each.
    let (scale, skip) = unsafe { (*op.scale, *op.skip) };
    if skip != 0.0 {
        return;
    }
    if let Some(coded) = op.coded {
        // SAFETY: the caller's promise; blocks are disjoint.
        return by_elem!(op.elem, T => unsafe {
            let update = Update::<T, f32> { op, scale, types: PhantomData };
            run(place, &Blocks { update, coded }, op.count.div_ceil(BLOCK), 1, BLOCK * 12)
        });
    }
    // SAFETY: the caller's promise; pieces are disjoint.
    by_elem!(op.elem, T => by_elem!(op.moments, M => unsafe {
        let update = Update::<T, M> { op, scale, types: PhantomData };
        run(place, &update, op.count.div_ceil(PIECE), 1, PIECE * 24)
    }));
}

impl<T: Float, M: Float> Kernel for Update<'_, T, M> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.op;
        let from = part.start * PIECE;
        let count = (part.end * PIECE).min(op.count) - from;
        // SAFETY: elements from..from + count of each tensor belong to this call.
        unsafe {
            let slice = |at: *mut u8| std::slice::from_raw_parts_mut(at.cast::<M>().add(from), count);
            let v = (!op.v.is_null()).then(|| slice(op.v));
            self.advance::<L>(from, slice(op.m), v);
        }
    }
}

impl<T: Float, M: Float> Update<'_, T, M> {
    /// Updates the weights from element `from` on, with these moments of theirs.
    ///
    /// # Safety
    /// As many elements from there on belong to this call.
    #[inline(always)]
    pub unsafe fn advance<L: Level>(&self, from: usize, m: &mut [M], v: Option<&mut [M]>) {
        let (op, count) = (self.op, m.len());
        // SAFETY: the caller's promise.
        let grad = unsafe { std::slice::from_raw_parts(op.grad.add(from), count) };
        let keep = 1.0 - op.lr * op.weight_decay;
        let Some(v) = v else {
            let next = |i: usize, weight: f32| {
                let momentum = madd::<L>(op.beta1, m[i].wide(), grad[i] * self.scale);
                m[i] = M::settle(momentum, noise(op.keys[0], (op.first + from + i) as u32));
                weight * keep - op.lr * momentum
            };
            // SAFETY: as above.
            return unsafe { self.each(from, count, next) };
        };
        let step = op.lr / op.correction1;
        let root = op.correction2.sqrt();
        let next = |i: usize, weight: f32| {
            let (g, old) = (grad[i] * self.scale, m[i].wide());
            let first = madd::<L>(1.0 - op.beta1, g - old, old);
            let second = madd::<L>(op.beta2, v[i].wide(), (1.0 - op.beta2) * g * g);
            let [of_m, of_v] = op.keys.map(|key| noise(key, (op.first + from + i) as u32));
            (m[i], v[i]) = (M::settle(first, of_m), M::settle(second, of_v));
            weight * keep - step * (first / (second.sqrt() / root + op.eps))
        };
        // SAFETY: as above.
        unsafe { self.each(from, count, next) }
    }

    /// `next(element, weight)` is the weight after the update, for `count` elements from `from` on.
    ///
    /// # Safety
    /// They belong to this call.
    #[inline(always)]
    unsafe fn each(&self, from: usize, count: usize, mut next: impl FnMut(usize, f32) -> f32) {
        let op = self.op;
        // SAFETY: the caller's promise.
        let param = unsafe { std::slice::from_raw_parts_mut(op.param.cast::<T>().add(from), count) };
        if op.master.is_null() {
            for (i, param) in param.iter_mut().enumerate() {
                let noise = noise(op.weight_key, (op.first + from + i) as u32);
                *param = T::settle(next(i, param.wide()), noise);
            }
        } else {
            // SAFETY: as above.
            let master = unsafe { std::slice::from_raw_parts_mut(op.master.add(from), count) };
            for (i, (param, master)) in param.iter_mut().zip(master).enumerate() {
                *master = next(i, *master);
                *param = T::narrow(*master);
            }
        }
    }
}

/// What an update needs to know about a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScale {
    /// `min(1, max_norm / norm) / count`; 0 without a valid token.
    pub scale: f32,
    /// 1 if loss or norm is not finite or there is no valid token, else 0.
    pub skip: f32,
    /// `sqrt(sum_squares) / count`: the norm of the mean's gradient.
    pub norm: f32,
}

/// From the sum of squares of the gradient of the summed loss, the summed loss, and the number of valid tokens.
/// `max_norm` 0 means no clipping.
pub fn step_scale(sum_squares: f32, loss: f32, count: f32, max_norm: f32) -> StepScale {
    if count <= 0.0 {
        return StepScale { scale: 0.0, skip: 1.0, norm: 0.0 };
    }
    let norm = sum_squares.sqrt() / count;
    let clip = if max_norm > 0.0 && norm > max_norm { max_norm / norm } else { 1.0 };
    let finite = norm.is_finite() && loss.is_finite();
    StepScale { scale: if finite { clip / count } else { 0.0 }, skip: if finite { 0.0 } else { 1.0 }, norm }
}
