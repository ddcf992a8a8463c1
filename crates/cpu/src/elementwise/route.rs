//! Routers of experts: scores, choice, weights, and their gradients, one row at a time.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Kernel, Level, run};
use super::math::{exp, sigmoid};
use crate::mat::{Elem, Mat, MatMut};
use fathom_tensor::{Groups, MOST_EXPERTS, RouterScores, Routing};
use std::ops::Range;

/// Keeps a sum of weights above zero, as in DeepSeek-V3's code.
const TINY: f32 = 1e-20;

/// Chooses experts; see [`fathom_tensor::Route`].
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// Routing parameters.
    pub routing: Routing,
    /// Tokens.
    pub rows: usize,
    /// At most [`MOST_EXPERTS`].
    pub experts: usize,
    /// f32 `[rows, experts]`.
    pub logits: Mat,
    /// f32 per expert.
    pub bias: Option<&'a [f32]>,
    /// i32 `[rows, k]`, without gaps.
    pub index: *mut i32,
    /// f32 `[rows, k]`.
    pub weights: MatMut,
}

// SAFETY: each row of the index belongs to the call that computes the row.
unsafe impl Sync for Route<'_> {}

/// The backward pass of [`Route`].
#[derive(Clone, Copy, Debug)]
pub struct RouteBackward<'a> {
    /// Routing parameters.
    pub routing: Routing,
    /// At most [`MOST_EXPERTS`].
    pub experts: usize,
    /// f32 `[rows, experts]`.
    pub logits: Mat,
    /// i32 `[rows, k]`.
    pub index: &'a [i32],
    /// f32 `[rows, k]`.
    pub dweights: Mat,
    /// f32 `[rows, experts]`, overwritten.
    pub dlogits: MatMut,
}

/// The gradient of a router's own losses; see [`fathom_tensor::RouterLosses`].
#[derive(Clone, Copy, Debug)]
pub struct RouterLosses<'a> {
    /// Function from logits to scores.
    pub scores: RouterScores,
    /// Tokens.
    pub rows: usize,
    /// f32 `[rows, experts]`.
    pub logits: Mat,
    /// f32 per expert, at most [`MOST_EXPERTS`].
    pub load: &'a [f32],
    /// Factor of the load-balancing loss.
    pub aux: f32,
    /// Factor of the z-loss.
    pub z: f32,
    /// f32 `[rows, experts]`, overwritten.
    pub dlogits: MatMut,
}

/// Writes the softmax of `logits` and returns the logarithm of the sum of exponentials.
#[inline(always)]
fn softmax<L: Level>(logits: &[f32], out: &mut [f32]) -> f32 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |top, x| if *x > top { *x } else { top });
    let mut sum = 0.0;
    for (out, x) in out.iter_mut().zip(logits) {
        *out = exp::<L>(*x - top);
        sum += *out;
    }
    out.iter_mut().for_each(|x| *x /= sum);
    top + sum.ln()
}

#[inline(always)]
fn score<L: Level>(kind: RouterScores, logits: &[f32], out: &mut [f32]) {
    match kind {
        RouterScores::Softmax => {
            softmax::<L>(logits, out);
        }
        RouterScores::Sigmoid => out.iter_mut().zip(logits).for_each(|(out, x)| *out = sigmoid::<L>(*x)),
    }
}

/// The first of the largest values not yet `taken`.
#[inline(always)]
fn best(values: &[f32], taken: &[bool]) -> usize {
    let mut found = None;
    for (at, value) in values.iter().enumerate() {
        if !taken[at] && found.is_none_or(|best: usize| *value > values[best]) {
            found = Some(at);
        }
    }
    found.unwrap_or(0)
}

/// Marks the experts outside the best groups.
#[inline(always)]
fn leave_groups(groups: Groups, choice: &[f32], taken: &mut [bool]) {
    let size = choice.len() / groups.count;
    let mut sums = [0.0f32; MOST_EXPERTS];
    for (group, sum) in sums[..groups.count].iter_mut().enumerate() {
        let of = &choice[group * size..(group + 1) * size];
        let mut seen = [false; MOST_EXPERTS];
        for _ in 0..groups.by.min(size) {
            let at = best(of, &seen[..size]);
            seen[at] = true;
            *sum += of[at];
        }
    }
    let mut chosen = [false; MOST_EXPERTS];
    for _ in 0..groups.top {
        chosen[best(&sums[..groups.count], &chosen[..groups.count])] = true;
    }
    for (expert, taken) in taken.iter_mut().enumerate() {
        *taken = !chosen[expert / size];
    }
}

/// Computes `op.index` and `op.weights`.
///
/// # Safety
/// See the module documentation; the index has `rows x k` elements.
pub unsafe fn route(place: Place<'_>, op: &Route<'_>) {
    let Routing { top_k, groups, .. } = op.routing;
    let divides = |groups: Groups| {
        groups.count > 0
            && op.experts.is_multiple_of(groups.count)
            && (1..=groups.count).contains(&groups.top)
            && groups.top * (op.experts / groups.count) >= top_k
    };
    let fits = (1..=op.experts).contains(&top_k)
        && op.experts <= MOST_EXPERTS
        && groups.is_none_or(divides)
        && op.bias.is_none_or(|bias| bias.len() == op.experts);
    assert!(fits, "route: {top_k} of {} experts, {groups:?}", op.experts);
    assert!(op.logits.elem == Elem::F32 && op.weights.elem == Elem::F32, "route: storage of {op:?}");
    // SAFETY: the caller's promise; rows are disjoint.
    unsafe { run(place, op, op.rows, 1, op.experts * (4 + top_k)) }
}

impl Kernel for Route<'_> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let Routing { top_k, scores: kind, groups, normalise, scale } = self.routing;
        let mut scores = [0.0f32; MOST_EXPERTS];
        let mut choice = [0.0f32; MOST_EXPERTS];
        let (scores, choice) = (&mut scores[..self.experts], &mut choice[..self.experts]);
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (logits, index, weights) = unsafe {
                let index = std::slice::from_raw_parts_mut(self.index.add(row * top_k), top_k);
                (self.logits.row::<f32>(row, self.experts), index, self.weights.row::<f32>(row, top_k))
            };
            score::<L>(kind, logits, scores);
            choice.copy_from_slice(scores);
            if let Some(bias) = self.bias {
                choice.iter_mut().zip(bias).for_each(|(choice, bias)| *choice += bias);
            }
            let mut taken = [false; MOST_EXPERTS];
            let taken = &mut taken[..self.experts];
            if let Some(groups) = groups {
                leave_groups(groups, choice, taken);
            }
            let mut sum = TINY;
            for (index, weight) in index.iter_mut().zip(weights.iter_mut()) {
                let expert = best(choice, taken);
                taken[expert] = true;
                (*index, *weight) = (expert as i32, scores[expert]);
                sum += scores[expert];
            }
            let factor = if normalise { scale / sum } else { scale };
            weights.iter_mut().for_each(|weight| *weight *= factor);
        }
    }
}

/// Computes `op.dlogits`.
///
/// # Safety
/// See the module documentation.
///
/// # Panics
/// If an expert of the index does not exist.
pub unsafe fn route_backward(place: Place<'_>, op: &RouteBackward<'_>) {
    let top_k = op.routing.top_k;
    let exist = op.index.iter().all(|expert| (0..op.experts as i32).contains(expert));
    assert!(exist && op.experts <= MOST_EXPERTS, "route backward: {} experts", op.experts);
    let wide = [op.logits.elem, op.dweights.elem, op.dlogits.elem] == [Elem::F32; 3];
    assert!(wide, "route backward: storage of logits and gradients");
    // SAFETY: the caller's promise; rows are disjoint.
    unsafe { run(place, op, op.index.len() / top_k, 1, op.experts * 16) }
}

impl Kernel for RouteBackward<'_> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let Routing { top_k, scores: kind, normalise, scale, .. } = self.routing;
        let mut scores = [0.0f32; MOST_EXPERTS];
        let scores = &mut scores[..self.experts];
        for row in part {
            let index = &self.index[row * top_k..(row + 1) * top_k];
            // SAFETY: rows and columns named by the descriptor.
            let (logits, dweights, dlogits) = unsafe {
                (
                    self.logits.row::<f32>(row, self.experts),
                    self.dweights.row::<f32>(row, top_k),
                    self.dlogits.row::<f32>(row, self.experts),
                )
            };
            score::<L>(kind, logits, scores);
            let (mut sum, mut product) = (TINY, 0.0);
            for (expert, dweight) in index.iter().zip(dweights) {
                sum += scores[*expert as usize];
                product += dweight * scores[*expert as usize];
            }
            let (factor, mean) = if normalise { (scale / sum, product / sum) } else { (scale, 0.0) };
            // The gradients of the scores, in place of the logits' gradients; most are zero.
            dlogits.fill(0.0);
            let mut inner = 0.0;
            for (expert, dweight) in index.iter().zip(dweights) {
                let dscore = factor * (dweight - mean);
                dlogits[*expert as usize] = dscore;
                inner += dscore * scores[*expert as usize];
            }
            let slopes = dlogits.iter_mut().zip(scores.iter());
            match kind {
                RouterScores::Softmax => slopes.for_each(|(d, score)| *d = score * (*d - inner)),
                RouterScores::Sigmoid => slopes.for_each(|(d, score)| *d *= score * (1.0 - score)),
            }
        }
    }
}

/// Computes `op.dlogits`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn router_losses(place: Place<'_>, op: &RouterLosses<'_>) {
    assert!(op.load.len() <= MOST_EXPERTS, "router losses: {} experts", op.load.len());
    assert!(op.logits.elem == Elem::F32 && op.dlogits.elem == Elem::F32, "router losses: storage");
    // SAFETY: the caller's promise; rows are disjoint.
    unsafe { run(place, op, op.rows, 1, op.load.len() * 16) }
}

impl Kernel for RouterLosses<'_> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let experts = self.load.len();
        let mut scores = [0.0f32; MOST_EXPERTS];
        let scores = &mut scores[..experts];
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (logits, dlogits) =
                unsafe { (self.logits.row::<f32>(row, experts), self.dlogits.row::<f32>(row, experts)) };
            let lse = softmax::<L>(logits, scores);
            for (d, p) in dlogits.iter_mut().zip(scores.iter()) {
                *d = 2.0 * self.z * lse * p;
            }
            let mut sum = 1.0;
            if self.scores == RouterScores::Sigmoid {
                score::<L>(RouterScores::Sigmoid, logits, scores);
                sum = TINY + scores.iter().sum::<f32>();
            }
            let mean = scores.iter().zip(self.load).map(|(score, load)| score * load).sum::<f32>() / sum;
            for ((d, score), load) in dlogits.iter_mut().zip(scores.iter()).zip(self.load) {
                let slope = if self.scores == RouterScores::Sigmoid { (1.0 - score) / sum } else { 1.0 };
                *d += self.aux * score * slope * (load - mean);
            }
        }
    }
}

/// `load[e] +=` number of slots whose expert is e, counted in integers: an f32 that grows by ones stops at 2^24.
///
/// # Panics
/// If an expert does not exist.
pub fn count_experts(index: &[i32], load: &mut [f32]) {
    let mut counts = vec![0u64; load.len()];
    for expert in index.iter().filter(|expert| **expert >= 0) {
        assert!((*expert as usize) < load.len(), "count experts: {expert} of {}", load.len());
        counts[*expert as usize] += 1;
    }
    load.iter_mut().zip(counts).for_each(|(load, count)| *load += count as f32);
}

#[cfg(test)]
mod tests {
    use super::count_experts;

    #[test]
    fn counts_go_on_above_what_an_f32_can_count_by_ones() {
        let mut load = [0.0, 16_777_216.0];
        count_experts(&[1, 0, 1, -1, 1, 1], &mut load);
        assert_eq!(load, [1.0, 16_777_220.0]);
    }
}
