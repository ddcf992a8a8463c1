//! Divergence of a tile of logits from a teacher's, with its gradient.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Kernel, Level, run, sum_three};
use super::loss::{capped, spread_stats};
use super::math::{exp, ln};
use crate::mat::{Mat, MatMut};
use std::ops::Range;

/// Logits of one model, f32 `[rows, vocab]`, with the ranks' statistics.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// The logits.
    pub logits: Mat,
    /// f32 `[2 x ranks, rows]` statistics, and the number of ranks.
    pub stats: (Mat, usize),
    /// Multiplies the logits first.
    pub scale: f32,
    /// `cap tanh(x / cap)`; 0 for none.
    pub softcap: f32,
}

/// The known part of the teacher's distribution.
#[derive(Clone, Copy, Debug)]
pub enum Known<'a> {
    /// The whole distribution.
    Whole(Side),
    /// The best tokens.
    Best {
        /// `[rows, k]`.
        ids: &'a [i32],
        /// `[rows, k]`.
        logps: &'a [f32],
        /// Number of tokens per row.
        k: usize,
        /// Counts the rest of the mass as one more token.
        rest: bool,
        /// See [`fathom_tensor::CLOSEST`].
        closest: f32,
    },
}

/// See [`fathom_tensor::Divergence`].
#[derive(Clone, Copy, Debug)]
pub struct Divergence<'a> {
    /// Columns.
    pub vocab: usize,
    /// The student.
    pub student: Side,
    /// The teacher.
    pub teacher: Known<'a>,
    /// Below zero: ignored.
    pub labels: &'a [i32],
    /// Vocabulary index of the first column.
    pub first: usize,
    /// From 0 to 1.
    pub beta: f32,
    /// f32 `[n, rows]`: read with `out`, else written.
    pub parts: MatMut,
    /// Results computed from the parts.
    pub out: Option<Diverged<'a>>,
}

/// See [`fathom_tensor::Diverged`].
#[derive(Clone, Copy, Debug)]
pub struct Diverged<'a> {
    /// f32 `[1, rows]`.
    pub loss: MatMut,
    /// f32 `[rows, vocab]`; may be the teacher's logits.
    pub dlogits: MatMut,
    /// Multiplies a row's gradient.
    pub weights: &'a [f32],
    /// Multiplies all gradients.
    pub factor: f32,
}

struct Rows<'a>(&'a Divergence<'a>);

/// Writes the parts, or computes the loss and the gradient from them.
///
/// # Safety
/// See the module documentation.
pub unsafe fn divergence(place: Place<'_>, op: &Divergence<'_>) {
    // SAFETY: the caller's promise; rows are disjoint.
    unsafe { run(place, &Rows(op), op.labels.len(), 1, op.vocab * 16) }
}

/// Kinds of divergence: forward, reverse, and in between.
const FORWARD: u8 = 0;
const REVERSE: u8 = 1;
const MIXED: u8 = 2;

/// `log((1 - beta) q + beta p)`, given logarithms.
#[inline(always)]
fn mixture<L: Level>(beta: f32, q: f32, p: f32) -> f32 {
    let (low, apart) = (p < q, (p - q).abs());
    let (top, at_top) = if low { (q, 1.0 - beta) } else { (p, beta) };
    top + ln::<L>(at_top + (1.0 - at_top) * exp::<L>(-apart))
}

/// A column's contribution to the two parts, from the logarithms of its probabilities.
#[inline(always)]
fn column<L: Level, const KIND: u8>(beta: f32, q: f32, p: f32) -> [f32; 2] {
    match KIND {
        FORWARD => [exp::<L>(p) * (p - q), 0.0],
        REVERSE => [exp::<L>(q) * (q - p); 2],
        _ => {
            let m = mixture::<L>(beta, q, p);
            let of_q = (1.0 - beta) * exp::<L>(q) * (q - m);
            [beta * exp::<L>(p) * (p - m) + of_q, of_q]
        }
    }
}

/// The gradient with respect to the student's logit after scale and cap; `mean` is the second part.
#[inline(always)]
fn slope<L: Level, const KIND: u8>(beta: f32, q: f32, p: f32, mean: f32) -> f32 {
    match KIND {
        FORWARD => exp::<L>(q) - exp::<L>(p),
        REVERSE => exp::<L>(q) * (q - p - mean),
        _ => exp::<L>(q) * ((1.0 - beta) * (q - mixture::<L>(beta, q, p)) - mean),
    }
}

/// Like [`capped`], with one copy of the loops for both models, whether either has a cap.
#[inline(always)]
fn through<L: Level, const CAP: bool>(x: f32, side: &Side) -> (f32, f32) {
    if CAP && side.softcap != 0.0 {
        capped::<L, true>(x, side.scale, side.softcap)
    } else {
        capped::<L, false>(x, side.scale, 1.0)
    }
}

impl Kernel for Rows<'_> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        let teacher_cap = if let Known::Whole(side) = &op.teacher { side.softcap } else { 0.0 };
        // SAFETY: passed on.
        unsafe {
            if op.student.softcap == 0.0 && teacher_cap == 0.0 {
                self.of_cap::<L, false>(part);
            } else {
                self.of_cap::<L, true>(part);
            }
        }
    }
}

impl Rows<'_> {
    #[inline(always)]
    unsafe fn of_cap<L: Level, const CAP: bool>(&self, part: Range<usize>) {
        // SAFETY: passed on.
        unsafe {
            match self.0.beta {
                0.0 => self.rows::<L, CAP, FORWARD>(part),
                1.0 => self.rows::<L, CAP, REVERSE>(part),
                _ => self.rows::<L, CAP, MIXED>(part),
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<L: Level, const CAP: bool, const KIND: u8>(&self, part: Range<usize>) {
        let op = self.0;
        for row in part {
            // SAFETY: rows and columns named by the descriptor; only this call uses this row.
            unsafe {
                if op.labels[row] < 0 {
                    self.nothing(row);
                    continue;
                }
                match op.teacher {
                    Known::Whole(teacher) => self.whole::<L, CAP, KIND>(row, &teacher),
                    Known::Best { ids, logps, k, rest, closest } => {
                        let range = row * k..(row + 1) * k;
                        let best = Best { ids: &ids[range.clone()], logps: &logps[range], rest, closest };
                        self.best::<L, CAP>(row, &best);
                    }
                }
            }
        }
    }

    /// An element of the parts.
    ///
    /// # Safety
    /// The element exists, and only this row uses it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, index: usize, row: usize) -> &mut f32 {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.parts.ptr.cast::<f32>().add(index * self.0.parts.stride + row) }
    }

    /// Handles an ignored row.
    #[inline(always)]
    unsafe fn nothing(&self, row: usize) {
        let op = self.0;
        let parts = if let Known::Best { k, .. } = op.teacher { k } else { 2 };
        // SAFETY: this row's elements.
        unsafe {
            match &op.out {
                None => (0..parts).for_each(|index| *self.part(index, row) = 0.0),
                Some(out) => {
                    *out.loss.ptr.cast::<f32>().add(row) = 0.0;
                    out.dlogits.row::<f32>(row, op.vocab).fill(0.0);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn whole<L: Level, const CAP: bool, const KIND: u8>(&self, row: usize, teacher: &Side) {
        let op = self.0;
        let (student, beta) = (&op.student, op.beta);
        // SAFETY: rows and columns named by the descriptor; the teacher's row is copied before it is overwritten,
        // unless they are separate.
        unsafe {
            let lse = |side: &Side| spread_stats(&side.stats.0, side.stats.1, 2, row).0;
            let (of_student, of_teacher) = (lse(student), lse(teacher));
            let logs = |x: f32, y: f32| {
                let (q, slope) = through::<L, CAP>(x, student);
                (q - of_student, through::<L, CAP>(y, teacher).0 - of_teacher, slope)
            };
            let x = student.logits.row::<f32>(row, op.vocab);
            let Some(out) = &op.out else {
                let y = teacher.logits.row::<f32>(row, op.vocab);
                for index in 0..2 {
                    *self.part(index, row) = match (KIND, index) {
                        (FORWARD, 1) => 0.0,
                        (REVERSE, 1) => *self.part(0, row),
                        _ => sum_three(x, y, y, |x, y, _| {
                            let (q, p, _) = logs(x, y);
                            column::<L, KIND>(beta, q, p)[index]
                        }),
                    };
                }
                return;
            };
            let mean = *self.part(1, row);
            *out.loss.ptr.cast::<f32>().add(row) = *self.part(0, row);
            let by = out.factor * out.weights[row] * student.scale;
            let to = out.dlogits.row::<f32>(row, op.vocab);
            if !std::ptr::eq(out.dlogits.ptr, teacher.logits.ptr) {
                to.copy_from_slice(teacher.logits.row::<f32>(row, op.vocab));
            }
            for (to, x) in to.iter_mut().zip(x) {
                let (q, p, cap) = logs(*x, *to);
                *to = by * cap * slope::<L, KIND>(beta, q, p, mean);
            }
        }
    }

    #[inline(always)]
    unsafe fn best<L: Level, const CAP: bool>(&self, row: usize, best: &Best<'_>) {
        let op = self.0;
        let student = &op.student;
        let here = |id: i32| (id as usize).checked_sub(op.first).filter(|at| *at < op.vocab);
        // SAFETY: as above.
        unsafe {
            let x = student.logits.row::<f32>(row, op.vocab);
            let Some(out) = &op.out else {
                for (index, id) in best.ids.iter().enumerate() {
                    *self.part(index, row) = here(*id).map_or(0.0, |at| through::<L, CAP>(x[at], student).0);
                }
                return;
            };
            let lse = spread_stats(&student.stats.0, student.stats.1, 2, row).0;
            let known: Vec<f64> =
                (0..best.ids.len()).map(|index| f64::from(*self.part(index, row) - lse)).collect();
            let found = best.compare(&known, f64::from(op.beta));
            *out.loss.ptr.cast::<f32>().add(row) = found.loss as f32;
            let by = out.factor * out.weights[row] * student.scale;
            let (to, others) = (out.dlogits.row::<f32>(row, op.vocab), by * found.others as f32);
            if others == 0.0 {
                to.fill(0.0);
            } else {
                for (to, x) in to.iter_mut().zip(x) {
                    let (q, cap) = through::<L, CAP>(*x, student);
                    *to = others * exp::<L>(q - lse) * cap;
                }
            }
            for (id, slope) in best.ids.iter().zip(&found.slopes) {
                if let Some(at) = here(*id) {
                    to[at] = by * through::<L, CAP>(x[at], student).1 * *slope as f32;
                }
            }
        }
    }
}

/// The best tokens of a row.
struct Best<'a> {
    ids: &'a [i32],
    logps: &'a [f32],
    rest: bool,
    closest: f32,
}

/// A divergence over best tokens.
struct Compared {
    loss: f64,
    /// Its gradient with respect to the logit of each best token.
    slopes: Vec<f64>,
    /// Its gradient with respect to any other token's logit, divided by that token's probability.
    others: f64,
}

/// The divergence of one token, and its derivative with respect to the logarithm of the student's probability.
fn pair(beta: f64, q: f64, p: f64) -> [f64; 2] {
    let (eq, ep) = (q.exp(), p.exp());
    if beta == 0.0 {
        return [ep * (p - q), -ep];
    }
    if beta == 1.0 {
        return [eq * (q - p), eq * (q - p + 1.0)];
    }
    let (top, low) =
        if p > q { (p, (1.0 - beta) * (q - p).exp() + beta) } else { (q, beta * (p - q).exp() + 1.0 - beta) };
    let m = top + low.ln();
    let of_q = (1.0 - beta) * eq * (q - m);
    [beta * ep * (p - m) + of_q, of_q]
}

impl Best<'_> {
    /// Compares with the student's log-probabilities `q`. The derivative of those by a logit is
    /// `d log q_i / dz_v = [i = v] - q_v`.
    fn compare(&self, q: &[f64], beta: f64) -> Compared {
        let p: Vec<f64> = self.logps.iter().map(|logp| f64::from(*logp)).collect();
        let mass = |logs: &[f64]| {
            let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            top + logs.iter().map(|log| (log - top).exp()).sum::<f64>().ln()
        };
        let (of_q, of_p) = (mass(q), mass(&p));
        let norm = if self.rest { [0.0; 2] } else { [of_q, of_p] };
        let pairs: Vec<[f64; 2]> =
            q.iter().zip(&p).map(|(q, p)| pair(beta, q - norm[0], p - norm[1])).collect();
        let [mut loss, all] = pairs.iter().fold([0.0; 2], |sum, pair| [sum[0] + pair[0], sum[1] + pair[1]]);
        let (mut by_mass, mut others) = (all, 0.0);
        if self.rest {
            let closest = f64::from(self.closest);
            let tail = |mass: f64| (-mass.min(closest).exp_m1()).ln();
            let (rest_q, rest_p) = (tail(of_q), tail(of_p));
            let [more, slope] = pair(beta, rest_q, rest_p);
            loss += more;
            // If the mass was clamped to `closest`, the rest is constant.
            let each = if of_q < closest { slope / rest_q.exp() } else { 0.0 };
            by_mass += each * -of_q.exp_m1();
            others = each * of_q.exp() - all;
        }
        let slope = |(q, pair): (&f64, &[f64; 2])| pair[1] - (q - norm[0]).exp() * by_mass;
        Compared { loss, slopes: q.iter().zip(&pairs).map(slope).collect(), others }
    }
}
