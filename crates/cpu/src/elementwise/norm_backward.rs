//! Gradients of the norms with respect to input and weight.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, madd, run, sum_three};
use super::norm::{factor, normalised};
use crate::mat::{Elem, Mat, MatMut};
use fathom_tensor::{NormKind, SUM_CHUNK};
use std::marker::PhantomData;
use std::ops::Range;

/// Inputs of the backward pass of [`super::Norm`].
#[derive(Clone, Copy, Debug)]
pub struct NormBackward {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// Rows of x.
    pub rows: usize,
    /// Groups of columns per row.
    pub groups: usize,
    /// Columns per group.
    pub width: usize,
    /// The forward input.
    pub x: Mat,
    /// The forward weight.
    pub weight: Mat,
    /// Statistics written by the forward pass.
    pub stats: Mat,
    /// Gradient of the output, stored like x.
    pub dy: Mat,
}

impl NormBackward {
    fn check(&self) {
        assert!(
            self.x.elem == self.dy.elem && self.stats.elem == Elem::F32,
            "norm backward: storage of {self:?}"
        );
    }

    /// Mean and reciprocal deviation of a group.
    ///
    /// # Safety
    /// The group exists.
    #[inline(always)]
    unsafe fn stats(&self, row: usize, group: usize) -> (f32, f32) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.kind.centred {
                let stats = self.stats.row::<f32>(row, 2 * self.groups);
                (stats[2 * group], stats[2 * group + 1])
            } else {
                (0.0, self.stats.row::<f32>(row, self.groups)[group])
            }
        }
    }
}

struct Input<'a, T, W> {
    op: &'a NormBackward,
    dx: MatMut,
    accumulate: bool,
    types: PhantomData<fn(T, W)>,
}

/// `dx (+)= (g - mean(g x') x' - mean(g)) / deviation` with `g = dy * w` and x' the normalised input; the last mean
/// only if centred. `dx` is stored like x.
///
/// # Safety
/// See the module documentation.
pub unsafe fn norm_backward_input(place: Place<'_>, op: &NormBackward, dx: MatMut, accumulate: bool) {
    op.check();
    assert!(dx.elem == op.x.elem, "norm backward: dx is stored as {:?}, x as {:?}", dx.elem, op.x.elem);
    let bytes = op.groups * op.width * op.x.elem.bytes() * 3;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(op.x.elem, T => by_elem!(op.weight.elem, W => unsafe {
        run(place, &Input::<T, W> { op, dx, accumulate, types: PhantomData }, op.rows, 1, bytes)
    }));
}

impl<T: Float, W: Float> Kernel for Input<'_, T, W> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.op;
        let (width, kind) = (op.width, op.kind);
        let cols = op.groups * width;
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (x, dy, dx, weight) = unsafe {
                (
                    op.x.row::<T>(row, cols),
                    op.dy.row::<T>(row, cols),
                    self.dx.row::<T>(row, cols),
                    op.weight.row::<W>(0, width),
                )
            };
            for group in 0..op.groups {
                // SAFETY: as above.
                let (mean, inverse) = unsafe { op.stats(row, group) };
                let (x, dy) = (&x[group * width..][..width], &dy[group * width..][..width]);
                let dx = &mut dx[group * width..][..width];
                let g = |dy: f32, w: f32| dy * factor(kind, w);
                let along = sum_three(x, dy, weight, |x, dy, w| g(dy, w) * ((x - mean) * inverse));
                let offset = if kind.centred { sum_three(x, dy, weight, |_, dy, w| g(dy, w)) } else { 0.0 };
                let (along, offset) = (along / width as f32, offset / width as f32);
                let gradient = |x: f32, dy: f32, w: f32| {
                    inverse * (madd::<L>(-along, (x - mean) * inverse, g(dy, w)) - offset)
                };
                let inputs = x.iter().zip(dy).zip(weight).map(|((x, dy), w)| (x.wide(), dy.wide(), w.wide()));
                if self.accumulate {
                    for (dx, (x, dy, w)) in dx.iter_mut().zip(inputs) {
                        *dx = T::narrow(dx.wide() + gradient(x, dy, w));
                    }
                } else {
                    for (dx, (x, dy, w)) in dx.iter_mut().zip(inputs) {
                        *dx = T::narrow(gradient(x, dy, w));
                    }
                }
            }
        }
    }
}

/// Columns summed at a time, in L1.
const BLOCK: usize = 512;

struct Weight<'a, T> {
    op: &'a NormBackward,
    dweight: MatMut,
    dbias: Option<MatMut>,
    types: PhantomData<fn(T)>,
}

/// `dweight += sum of dy * x'`, `dbias += sum of dy` over rows and groups, per column in ascending chunks of
/// [`SUM_CHUNK`] rows; both f32 `[1, width]`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn norm_backward_weight(
    place: Place<'_>,
    op: &NormBackward,
    dweight: MatMut,
    dbias: Option<MatMut>,
) {
    op.check();
    let sums_fit = dweight.elem == Elem::F32 && dbias.is_none_or(|dbias| dbias.elem == Elem::F32);
    assert!(sums_fit, "norm backward: weight gradients are f32");
    let bytes = op.rows * op.groups * op.x.elem.bytes() * 2;
    let grain = op.width.div_ceil(place.threads.count()).next_multiple_of(64).min(BLOCK);
    // SAFETY: the caller's promise; columns are disjoint.
    by_elem!(op.x.elem, T => unsafe {
        run(place, &Weight::<T> { op, dweight, dbias, types: PhantomData }, op.width, grain, bytes)
    });
}

impl<T: Float> Kernel for Weight<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let (op, kind) = (self.op, self.op.kind);
        for from in part.clone().step_by(BLOCK) {
            let block = from..(from + BLOCK).min(part.end);
            let width = block.len();
            for start in (0..op.rows).step_by(SUM_CHUNK) {
                let (mut weight, mut bias) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
                let (weight, bias) = (&mut weight[..width], &mut bias[..width]);
                for row in start..(start + SUM_CHUNK).min(op.rows) {
                    for group in 0..op.groups {
                        let at = group * op.width + block.start;
                        // SAFETY: rows and columns named by the descriptor.
                        let (x, dy, (mean, inverse)) = unsafe {
                            let cols = op.groups * op.width;
                            (
                                &op.x.row::<T>(row, cols)[at..][..width],
                                &op.dy.row::<T>(row, cols)[at..][..width],
                                op.stats(row, group),
                            )
                        };
                        for i in 0..width {
                            let y = normalised(kind, x[i], mean, inverse);
                            weight[i] = madd::<L>(dy[i].wide(), y, weight[i]);
                        }
                        if self.dbias.is_some() {
                            for i in 0..width {
                                bias[i] += dy[i].wide();
                            }
                        }
                    }
                }
                // SAFETY: only this call uses these columns of the sums.
                unsafe {
                    add_to(&self.dweight, block.start, weight);
                    if let Some(dbias) = &self.dbias {
                        add_to(dbias, block.start, bias);
                    }
                }
            }
        }
    }
}

/// Adds `sums` to columns from `at` of a row of f32.
///
/// # Safety
/// The columns exist, and nothing else uses them.
#[inline(always)]
pub(super) unsafe fn add_to(to: &MatMut, at: usize, sums: &[f32]) {
    // SAFETY: the caller's promise.
    let to = unsafe { std::slice::from_raw_parts_mut(to.ptr.cast::<f32>().add(at), sums.len()) };
    for (to, sum) in to.iter_mut().zip(sums) {
        *to += sum;
    }
}
