//! Cross-entropy of a tile of logits, with its gradient.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, fold_one, madd, run, sum_one, sum_two};
use super::math::{exp, tanh};
use crate::mat::{Elem, Mat, MatMut};
use fathom_tensor::choice::LEFT_OUT_BELOW;
use std::marker::PhantomData;
use std::ops::Range;

/// Cross-entropy of a tile of logits. With `f = softcap(scale * logits)` and `lse = log sum exp f`:
/// `loss = lse - f[label] + z_loss * lse^2`, and `dlogits` is the gradient of `sum(weight * loss)`.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'a> {
    /// Columns.
    pub vocab: usize,
    /// `[rows, vocab]`.
    pub logits: Mat,
    /// A column for each row; below zero: ignored (no loss, zero gradient).
    pub labels: &'a [i32],
    /// Multiplies a row's gradient; one if absent.
    pub weights: Option<&'a [f32]>,
    /// f32 `[1, rows]`.
    pub loss: MatMut,
    /// f32 `[1, rows]`: `f[label] - lse`, the log-probability of the label; zero where ignored.
    pub logp: Option<MatMut>,
    /// `[rows, vocab]`, any storage; may be `logits` itself.
    pub dlogits: Option<MatMut>,
    /// Multiplies the logits first (Granite).
    pub scale: f32,
    /// `cap tanh(x / cap)`; 0 for none (Gemma 2).
    pub softcap: f32,
    /// Weight of the squared log-partition.
    pub z_loss: f32,
    /// Present if the logits are a column slice of a larger vocabulary.
    pub spread: Option<Spread>,
    /// f32 `[2, rows]`: the entropy of the softmax, and 1 where the label is its first largest, else 0.
    pub measures: Option<MatMut>,
}

/// A column slice of a vocabulary that is spread over several ranks.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Vocabulary index of the first column.
    pub first: usize,
    /// f32 `[2, rows]`: `log sum exp f` over these columns, and `f[label]` if it is among them, else 0. With measures
    /// `[4, rows]`: also the entropy of their softmax, and their bound (see [`Measures`]). If given, only this is
    /// written.
    pub stats: Option<MatMut>,
    /// f32 `[2 x ranks, rows]`, or `[4 x ranks, rows]`: the statistics of all ranks, in order.
    pub all: Option<(Mat, usize)>,
}

struct Rows<'a, T, U>(&'a CrossEntropy<'a>, PhantomData<fn(T, U)>);

/// Computes `op.loss`, `op.logp` and `op.dlogits`.
///
/// # Safety
/// See the module documentation.
///
/// # Panics
/// If a label is not a column.
pub unsafe fn cross_entropy(place: Place<'_>, op: &CrossEntropy<'_>) {
    let beyond = |label: &i32| *label >= 0 && *label as usize >= op.vocab;
    if let (Some(at), None) = (op.labels.iter().position(beyond), &op.spread) {
        panic!("cross entropy: label {} at {at} is not below {}", op.labels[at], op.vocab);
    }
    let f32_out = op.loss.elem == Elem::F32 && op.logp.is_none_or(|logp| logp.elem == Elem::F32);
    let in_place = op.dlogits.is_none_or(|d| {
        !std::ptr::eq(d.ptr, op.logits.ptr) || (d.elem == op.logits.elem && d.stride == op.logits.stride)
    });
    let weights = op.weights.is_none_or(|weights| weights.len() == op.labels.len());
    assert!(f32_out && in_place && weights, "cross entropy: storage of {op:?}");
    let gradient = op.dlogits.map_or(Elem::F32, |dlogits| dlogits.elem);
    let bytes = op.vocab * op.logits.elem.bytes() * 4;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(op.logits.elem, T => by_elem!(gradient, U => unsafe {
        run(place, &Rows::<T, U>(op, PhantomData), op.labels.len(), 1, bytes)
    }));
}

/// Factors of a row's gradient.
#[derive(Clone, Copy)]
struct Slope {
    scale: f32,
    softcap: f32,
    lse: f32,
    /// Multiplies the softmax: `weight * (1 + 2 z_loss lse) * scale`.
    softmax: f32,
}

impl Slope {
    #[inline(always)]
    fn at<L: Level, const CAP: bool>(&self, x: f32) -> f32 {
        let (f, slope) = capped::<L, CAP>(x, self.scale, self.softcap);
        self.softmax * exp::<L>(f - self.lse) * slope
    }
}

/// `softcap(scale * x)` and its derivative with respect to `scale * x`. Masked logits are not capped.
#[inline(always)]
pub(super) fn capped<L: Level, const CAP: bool>(x: f32, scale: f32, softcap: f32) -> (f32, f32) {
    let x = scale * x;
    if CAP {
        let t = tanh::<L>(x / softcap);
        if x < LEFT_OUT_BELOW { (x, 0.0) } else { (softcap * t, madd::<L>(-t, t, 1.0)) }
    } else {
        (x, 1.0)
    }
}

impl<T: Float, U: Float> Kernel for Rows<'_, T, U> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        // Two copies of the loops, so that rows without a cap do not pay for one.
        // SAFETY: passed on.
        unsafe {
            if self.0.softcap == 0.0 { self.rows::<L, false>(part) } else { self.rows::<L, true>(part) }
        }
    }
}

impl<T: Float, U: Float> Rows<'_, T, U> {
    #[inline(always)]
    unsafe fn rows<L: Level, const CAP: bool>(&self, part: Range<usize>) {
        let op = self.0;
        let value = |x: f32| capped::<L, CAP>(x, op.scale, op.softcap).0;
        let each = if op.measures.is_some() { 4 } else { 2 };
        for row in part {
            let label = op.labels[row];
            // SAFETY: one element of each, of this row.
            let put_in = |to: &MatMut, index: usize, x: f32| unsafe {
                *to.ptr.cast::<f32>().add(index * to.stride + row) = x;
            };
            let put = |to: &MatMut, x: f32| put_in(to, 0, x);
            if label < 0 {
                if let Some(stats) = op.spread.and_then(|spread| spread.stats) {
                    (0..each).for_each(|index| put_in(&stats, index, 0.0));
                    continue;
                }
                put(&op.loss, 0.0);
                op.measures.iter().for_each(|to| (0..2).for_each(|index| put_in(to, index, 0.0)));
                op.logp.iter().for_each(|logp| put(logp, 0.0));
                // SAFETY: rows and columns named by the descriptor.
                op.dlogits.iter().for_each(|d| unsafe { d.row::<U>(row, op.vocab) }.fill(U::narrow(0.0)));
                continue;
            }
            let first = op.spread.map_or(0, |spread| spread.first);
            // Number of columns before the label's.
            let before = (label as usize).saturating_sub(first).min(op.vocab);
            let label = (label as usize).checked_sub(first).filter(|label| *label < op.vocab);
            let all = op.spread.and_then(|spread| spread.all);
            // SAFETY: rows and columns named by the descriptor; the slice ends before the gradient is written.
            let (lse, target, measures) = unsafe {
                let x = op.logits.row::<T>(row, op.vocab);
                let target = || label.map_or(0.0, |label| value(x[label].wide()));
                match (all, op.measures) {
                    (Some((all, ranks)), measures) => {
                        let (lse, target) = spread_stats(&all, ranks, each, row);
                        let of_all = measures.map_or(Measures::NONE, |_| Measures::of(&all, ranks, row, lse));
                        (lse, target, of_all)
                    }
                    (None, Some(_)) => {
                        let (lse, measures) = measured::<L, T>(x, before, value);
                        (lse, target(), measures)
                    }
                    (None, None) => (log_sum_exp::<L, T>(x, value), target(), Measures::NONE),
                }
            };
            if let Some(stats) = op.spread.and_then(|spread| spread.stats) {
                let found = [lse, target, measures.entropy, measures.bound];
                (0..each).for_each(|index| put_in(&stats, index, found[index]));
                continue;
            }
            if let Some(to) = &op.measures {
                put_in(to, 0, measures.entropy);
                put_in(to, 1, f32::from(target >= measures.bound));
            }
            put(&op.loss, lse - target + op.z_loss * lse * lse);
            op.logp.iter().for_each(|logp| put(logp, target - lse));
            if let Some(dlogits) = &op.dlogits {
                let weight = op.weights.map_or(1.0, |weights| weights[row]) * op.scale;
                let softmax = weight * madd::<L>(2.0 * op.z_loss, lse, 1.0);
                let slope = Slope { scale: op.scale, softcap: op.softcap, lse, softmax };
                // SAFETY: as above.
                unsafe { self.gradient::<L, CAP>(row, dlogits, slope, label, weight) }
            }
        }
    }

    #[inline(always)]
    unsafe fn gradient<L: Level, const CAP: bool>(
        &self,
        row: usize,
        to: &MatMut,
        slope: Slope,
        label: Option<usize>,
        weight: f32,
    ) {
        let op = self.0;
        // SAFETY: rows and columns named by the descriptor.
        unsafe {
            let at_label = label.map(|label| {
                let from = *op.logits.ptr.cast::<T>().add(row * op.logits.stride + label);
                let (_, cap) = capped::<L, CAP>(from.wide(), slope.scale, slope.softcap);
                (label, slope.at::<L, CAP>(from.wide()) - weight * cap)
            });
            let out = to.row::<U>(row, op.vocab);
            if op.logits.ptr == to.ptr {
                for out in out.iter_mut() {
                    *out = U::narrow(slope.at::<L, CAP>(out.wide()));
                }
            } else {
                for (out, x) in out.iter_mut().zip(op.logits.row::<T>(row, op.vocab)) {
                    *out = U::narrow(slope.at::<L, CAP>(x.wide()));
                }
            }
            if let Some((label, gradient)) = at_label {
                out[label] = U::narrow(gradient);
            }
        }
    }
}

/// Measures of a row.
#[derive(Clone, Copy)]
struct Measures {
    /// Entropy of its softmax, in nats.
    entropy: f32,
    /// Least logit with which the label is the first of the largest.
    bound: f32,
}

impl Measures {
    const NONE: Measures = Measures { entropy: 0.0, bound: f32::INFINITY };

    /// Combines all ranks' measures: with `w` the share of a rank's columns in the sum of exponentials,
    /// `H = sum w (H_rank - log w)`.
    ///
    /// # Safety
    /// `all` has four rows for each rank, with an element for `row` in each.
    unsafe fn of(all: &Mat, ranks: usize, row: usize, lse: f32) -> Measures {
        // SAFETY: the caller's promise.
        let at = |index: usize| unsafe { all.row::<f32>(index, row + 1)[row] };
        let term = |rank: usize| {
            let log = at(4 * rank) - lse;
            log.exp() * (at(4 * rank + 2) - log.max(LEAST))
        };
        let bound = (0..ranks).fold(f32::NEG_INFINITY, |bound, rank| bound.max(at(4 * rank + 3)));
        Measures { entropy: (0..ranks).map(term).sum(), bound }
    }
}

/// Finite stand-in for minus infinity; its exponential is zero.
const LEAST: f32 = -200.0;

/// The next number above a finite one; above zero, the smallest normal number.
#[inline(always)]
fn above(x: f32) -> f32 {
    if x == 0.0 { f32::MIN_POSITIVE } else { x.next_up() }
}

/// [`log_sum_exp`], to the bit, and the measures in the same two passes. `before` is the number of columns before the
/// label's; all of them if a later rank has the label.
#[inline(always)]
fn measured<L: Level, T: Float>(x: &[T], before: usize, value: impl Fn(f32) -> f32) -> (f32, Measures) {
    let most = |x: &[T]| fold_one(x, f32::NEG_INFINITY, |a, b| if b > a { b } else { a }, &value);
    let (first, rest) = (most(&x[..before]), most(&x[before..]));
    let top = if rest > first { rest } else { first };
    let (sum, mean) = sum_two(x, |x| {
        let from = value(x) - top;
        let e = exp::<L>(from);
        (e, e * if from > LEAST { from } else { LEAST })
    });
    let bound = if before == x.len() {
        above(top)
    } else if first >= rest {
        f32::INFINITY
    } else {
        top
    };
    (top + sum.ln(), Measures { entropy: sum.ln() - mean / sum, bound })
}

/// A row's `log sum exp` over all ranks and its label's logit, from the ranks' statistics, in rank order.
///
/// # Safety
/// `all` has `each` rows for each rank, two or more, with an element for `row` in each.
pub(super) unsafe fn spread_stats(all: &Mat, ranks: usize, each: usize, row: usize) -> (f32, f32) {
    // SAFETY: the caller's promise.
    let at = |index: usize| unsafe { all.row::<f32>(index, row + 1)[row] };
    let top = (0..ranks).fold(f32::NEG_INFINITY, |top, rank| top.max(at(each * rank)));
    let sum: f32 = (0..ranks).map(|rank| (at(each * rank) - top).exp()).sum();
    (top + sum.ln(), (0..ranks).map(|rank| at(each * rank + 1)).sum())
}

/// `log sum exp` of `value(x)`: the maximum first, then the sum in lanes.
#[inline(always)]
fn log_sum_exp<L: Level, T: Float>(x: &[T], value: impl Fn(f32) -> f32) -> f32 {
    let top = fold_one(x, f32::NEG_INFINITY, |a, b| if b > a { b } else { a }, &value);
    top + sum_one(x, |x| exp::<L>(value(x) - top)).ln()
}
