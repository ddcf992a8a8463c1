//! How far a student's distribution of the next token is from a teacher's, over a tile of logits.

use crate::Tensor;

/// The divergence of each row of a tile, and its gradient by the student's logits. With the student's probabilities `q`, the teacher's
/// `p` and `m = beta p + (1 - beta) q` it is `beta KL(p, m) + (1 - beta) KL(q, m)`, which at the ends is `KL(p, q)` (`beta` 0) and
/// `KL(q, p)` (`beta` 1): generalised Jensen-Shannon (Agarwal and others, 2024, section 3).
///
/// It runs twice. First each rank writes the `parts` of its columns; with their sums over the ranks it computes loss and gradient.
#[derive(Clone, Copy, Debug)]
pub struct Divergence<'a> {
    /// f32 [r, vocab]: the student's.
    pub logits: &'a Tensor,
    /// f32 [2 x ranks, r]: the statistics of all ranks for them ([`crate::Spread`]).
    pub stats: &'a Tensor,
    /// Multiplies them first.
    pub scale: f32,
    /// `cap tanh(x / cap)`; 0 for none.
    pub softcap: f32,
    /// The teacher.
    pub teacher: Known<'a>,
    /// i32 [1, r]; below zero: ignored (no loss, zero gradient).
    pub labels: &'a Tensor,
    /// The label that the first column is.
    pub first: usize,
    /// From 0 to 1.
    pub beta: f32,
    /// f32 [n, r]: see [`Known::parts`].
    pub parts: &'a Tensor,
    /// What is computed from the parts; `None`: the parts are written.
    pub out: Option<Diverged<'a>>,
}

/// What a divergence gives.
#[derive(Clone, Copy, Debug)]
pub struct Diverged<'a> {
    /// f32 [1, r]: the divergence.
    pub loss: &'a Tensor,
    /// f32 [r, vocab]: gradient of `sum(factor x weight x loss)`; may share storage with the teacher's logits.
    pub dlogits: &'a Tensor,
    /// f32 [1, r]: multiplies a row's gradient.
    pub weights: &'a Tensor,
    /// Multiplies every row's.
    pub factor: f32,
}

/// What is known of a teacher's distribution.
#[derive(Clone, Copy, Debug)]
pub enum Known<'a> {
    /// All of it.
    Whole {
        /// f32 [r, vocab].
        logits: &'a Tensor,
        /// f32 [2 x ranks, r]: the statistics of all ranks.
        stats: &'a Tensor,
        /// Multiplies them first.
        scale: f32,
        /// `cap tanh(x / cap)`; 0 for none.
        softcap: f32,
    },
    /// Its best tokens. The divergence is that of their probabilities.
    Best {
        /// i32 [r, k], no id twice in a row.
        ids: &'a Tensor,
        /// f32 [r, k]: natural log-probabilities.
        logps: &'a Tensor,
        /// What is left of the mass is one more token, on both sides; otherwise both are made to sum to one. Of the logarithm of
        /// the best tokens' mass at most [`CLOSEST`] is taken, as TRL does.
        rest: bool,
    },
}

/// The logarithm of the mass of the best tokens is at most this where the rest counts, so that the rest has a logarithm.
pub const CLOSEST: f32 = -1e-7;

impl Known<'_> {
    /// Rows of [`Divergence::parts`]: of a whole distribution the divergence and the mean of its slopes under the student, of `k` best
    /// tokens what the student's head says of each, 0 where another rank has it.
    pub fn parts(&self) -> usize {
        match self {
            Known::Whole { .. } => 2,
            Known::Best { ids, .. } => ids.cols(),
        }
    }
}
