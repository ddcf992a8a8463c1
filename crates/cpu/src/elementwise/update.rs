//! The update of a piece of weights by AdamW.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use fathom_tensor::moments::noise;

use super::level::{Float, Kernel, Level, madd};
use crate::mat::Elem;

/// One AdamW update (Loshchilov and Hutter, 2019) of contiguous tensors, in PyTorch's order of operations; without a
/// second moment SGD with momentum.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Elements of each tensor.
    pub count: usize,
    /// Storage of `param`.
    pub elem: Elem,
    /// The weights, updated.
    pub param: *mut u8,
    /// Their f32 master copy, updated first; null if `param` itself is updated and, if narrow, rounded stochastically.
    pub master: *mut f32,
    /// Storage of the moments, unless they are codes.
    pub moments: Elem,
    /// Scales of moments in e4m3 codes.
    pub scales: Option<MomentScales>,
    /// Keys of the noise that rounds narrow first and second moments.
    pub keys: [u32; 2],
    /// Key of the noise that rounds narrow weights without a master.
    pub weight_key: u32,
    /// Index of the first element within the whole weight.
    pub first: usize,
    /// First moment.
    pub m: *mut u8,
    /// Second moment; null for SGD with momentum.
    pub v: *mut u8,
    /// Gradient of the sum over tokens.
    pub grad: *const f32,
    /// Multiplies the gradient: one over the tokens, times the clip factor.
    pub scale: *const f32,
    /// If nonzero, nothing changes.
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
    pub(crate) scale: f32,
    pub(crate) types: PhantomData<fn(T, M)>,
}

// SAFETY: each task dereferences the pointers only within its own elements.
unsafe impl<T, M> Sync for Update<'_, T, M> {}

/// Elements processed as one piece.
pub(super) const PIECE: usize = 1024;

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

/// Elements updated at a time, in arrays: with five slices the compiler cannot tell which overlap and does not
/// vectorise, which took a third of a training step.
pub(super) const LANES: usize = 128;

impl<T: Float, M: Float> Update<'_, T, M> {
    /// Updates the weights from element `from` on, with the corresponding moments.
    ///
    /// # Safety
    /// The elements from there on, as many as there are moments, belong to this call.
    #[inline(always)]
    pub unsafe fn advance<L: Level>(&self, from: usize, m: &mut [M], mut v: Option<&mut [M]>) {
        for at in (0..m.len()).step_by(LANES) {
            let count = LANES.min(m.len() - at);
            let m = &mut m[at..at + count];
            let v = v.as_deref_mut().map(|v| &mut v[at..at + count]);
            // SAFETY: passed on. Copies of a length known to the compiler are inlined.
            unsafe {
                match count {
                    LANES => self.lanes::<L>(from + at, LANES, m, v),
                    _ => self.lanes::<L>(from + at, count, m, v),
                }
            }
        }
    }

    /// [`Self::advance`] for at most [`LANES`] elements.
    #[inline(always)]
    unsafe fn lanes<L: Level>(&self, from: usize, count: usize, m: &mut [M], v: Option<&mut [M]>) {
        let op = self.op;
        // SAFETY: the elements belong to this call.
        let (grad, param, master) = unsafe {
            (
                std::slice::from_raw_parts(op.grad.add(from), count),
                std::slice::from_raw_parts_mut(op.param.cast::<T>().add(from), count),
                (!op.master.is_null()).then(|| std::slice::from_raw_parts_mut(op.master.add(from), count)),
            )
        };
        let (grad, mut first) = (wide(grad), wide(&m[..count]));
        let mut weight = master.as_deref().map_or_else(|| wide(param), wide);
        let keep = 1.0 - op.lr * op.weight_decay;
        if let Some(v) = v {
            let mut second = wide(&v[..count]);
            let (step, root) = (op.lr / op.correction1, op.correction2.sqrt());
            for i in 0..LANES {
                let g = grad[i] * self.scale;
                first[i] = madd::<L>(1.0 - op.beta1, g - first[i], first[i]);
                second[i] = madd::<L>(op.beta2, second[i], (1.0 - op.beta2) * g * g);
                weight[i] = weight[i] * keep - step * (first[i] / (second[i].sqrt() / root + op.eps));
            }
            self.settle(from, op.keys[1], &second, &mut v[..count]);
        } else {
            for i in 0..LANES {
                first[i] = madd::<L>(op.beta1, first[i], grad[i] * self.scale);
                weight[i] = weight[i] * keep - op.lr * first[i];
            }
        }
        self.settle(from, op.keys[0], &first, &mut m[..count]);
        match master {
            None => self.settle(from, op.weight_key, &weight, param),
            Some(master) => {
                master.copy_from_slice(&weight[..count]);
                for i in 0..count {
                    param[i] = T::narrow(weight[i]);
                }
            }
        }
    }

    /// Stores values of the elements from `from` on; narrow ones are rounded stochastically.
    #[inline(always)]
    fn settle<S: Float>(&self, from: usize, key: u32, numbers: &[f32; LANES], to: &mut [S]) {
        let first = (self.op.first + from) as u32;
        let numbers = &numbers[..to.len()];
        for i in 0..to.len() {
            to[i] = S::settle(numbers[i], noise(key, first.wrapping_add(i as u32)));
        }
    }
}

/// Converts to f32, padded with zeros.
#[inline(always)]
pub(super) fn wide<S: Float>(from: &[S]) -> [f32; LANES] {
    let mut to = [0.0; LANES];
    for i in 0..from.len() {
        to[i] = from[i].wide();
    }
    to
}

/// Additional operands of coded moments.
#[derive(Clone, Copy, Debug)]
pub struct MomentScales {
    /// Scales of the first moment's blocks.
    pub m: *mut f32,
    /// Scales of the second moment's roots; null for SGD with momentum.
    pub v: *mut f32,
}
