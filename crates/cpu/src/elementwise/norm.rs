//! RMSNorm and LayerNorm, forward.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, run, sum_one};
use crate::mat::{Elem, Mat, MatMut};
use fathom_tensor::NormKind;
use std::marker::PhantomData;
use std::ops::Range;

/// Normalises each group of `width` columns of each row: `x / rms(x) * w`, or `(x - mean) / deviation * w + b`.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// Rows of x.
    pub rows: usize,
    /// Groups of columns per row (heads), all with the same weight.
    pub groups: usize,
    /// Columns per group.
    pub width: usize,
    /// `[rows, groups * width]`.
    pub x: Mat,
    /// `[1, width]`.
    pub weight: Mat,
    /// `[1, width]`, stored like the weight.
    pub bias: Option<Mat>,
    /// Like x.
    pub out: MatMut,
    /// f32 `[rows, groups]` reciprocal deviations, or `[rows, 2 * groups]` pairs of mean and reciprocal deviation if
    /// centred.
    pub stats: MatMut,
}

struct Forward<'a, T, W>(&'a Norm, PhantomData<fn(T, W)>);

/// Computes `op.out` and `op.stats`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn norm(place: Place<'_>, op: &Norm) {
    let bias_fits = op.bias.is_none_or(|bias| bias.elem == op.weight.elem);
    assert!(op.x.elem == op.out.elem && op.stats.elem == Elem::F32 && bias_fits, "norm: storage of {op:?}");
    let bytes = op.groups * op.width * op.x.elem.bytes() * 2;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(op.x.elem, T => by_elem!(op.weight.elem, W => unsafe {
        run(place, &Forward::<T, W>(op, PhantomData), op.rows, 1, bytes)
    }));
}

impl<T: Float, W: Float> Kernel for Forward<'_, T, W> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        let (width, centred) = (op.width, op.kind.centred);
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (x, out, stats, weight, bias) = unsafe {
                (
                    op.x.row::<T>(row, op.groups * width),
                    op.out.row::<T>(row, op.groups * width),
                    op.stats.row::<f32>(row, op.groups * if centred { 2 } else { 1 }),
                    op.weight.row::<W>(0, width),
                    op.bias.as_ref().map(|bias| bias.row::<W>(0, width)),
                )
            };
            for group in 0..op.groups {
                let x = &x[group * width..][..width];
                let out = &mut out[group * width..][..width];
                let mean = if centred { sum_one(x, |x| x) / width as f32 } else { 0.0 };
                let squares = sum_one(x, |x| (x - mean) * (x - mean));
                let inverse = 1.0 / (squares / width as f32 + op.kind.eps).sqrt();
                if centred {
                    (stats[2 * group], stats[2 * group + 1]) = (mean, inverse);
                } else {
                    stats[group] = inverse;
                }
                apply(op.kind, x, (weight, bias), (mean, inverse), out);
            }
        }
    }
}

/// The normalised value of `x`, rounded to the storage type if the kind requires it.
#[inline(always)]
pub(super) fn normalised<T: Float>(kind: NormKind, x: T, mean: f32, inverse: f32) -> f32 {
    let y = (x.wide() - mean) * inverse;
    if kind.round_first { T::narrow(y).wide() } else { y }
}

/// The factor that a weight represents.
#[inline(always)]
pub(super) fn factor(kind: NormKind, weight: f32) -> f32 {
    if kind.plus_one { 1.0 + weight } else { weight }
}

#[inline(always)]
fn apply<T: Float, W: Float>(
    kind: NormKind,
    x: &[T],
    (weight, bias): (&[W], Option<&[W]>),
    (mean, inverse): (f32, f32),
    out: &mut [T],
) {
    match bias {
        None => {
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = T::narrow(normalised(kind, *x, mean, inverse) * factor(kind, weight.wide()));
            }
        }
        Some(bias) => {
            for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                let y = normalised(kind, *x, mean, inverse) * factor(kind, weight.wide());
                *out = T::narrow(y + bias.wide());
            }
        }
    }
}
