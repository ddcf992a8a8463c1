//! Divergence of a student's next-token distribution from a teacher's, over a tile of logits.

use crate::Tensor;

/// The divergence of each row of a tile, and its gradient with respect to the student's logits. With the student's
/// probabilities `q`, the teacher's `p` and `m = beta p + (1 - beta) q`, it is `beta KL(p, m) + (1 - beta) KL(q, m)`,
/// with the limits `KL(p, q)` (`beta` 0) and `KL(q, p)` (`beta` 1): the generalised Jensen-Shannon divergence (Agarwal
/// et al., 2024, section 3).
///
/// Runs twice: first each rank writes the `parts` of its columns; then, given their sums over the ranks, it computes
/// loss and gradient.
#[derive(Clone, Copy, Debug)]
pub struct Divergence<'a> {
    /// f32 [r, vocab]: the student's logits.
    pub logits: &'a Tensor,
    /// f32 [2 x ranks, r]: all ranks' statistics of the logits ([`crate::VocabularyShare`]).
    pub stats: &'a Tensor,
    /// Multiplies the logits first.
    pub scale: f32,
    /// `cap tanh(x / cap)`; 0 for none.
    pub softcap: f32,
    /// The teacher.
    pub teacher: TeacherLogits<'a>,
    /// i32 [1, r]; below zero: ignored (no loss, zero gradient).
    pub labels: &'a Tensor,
    /// Vocabulary index of the first column.
    pub first: usize,
    /// From 0 to 1.
    pub beta: f32,
    /// f32 [n, r]: see [`TeacherLogits::parts`].
    pub parts: &'a Tensor,
    /// Results computed from the parts; if `None`, the parts are written.
    pub out: Option<DivergenceOutput<'a>>,
}

/// Results of a divergence.
#[derive(Clone, Copy, Debug)]
pub struct DivergenceOutput<'a> {
    /// f32 [1, r]: the divergence.
    pub loss: &'a Tensor,
    /// f32 [r, vocab]: gradient of `sum(factor x weight x loss)`; may share storage with the teacher's logits.
    pub dlogits: &'a Tensor,
    /// f32 [1, r]: multiplies a row's gradient.
    pub weights: &'a Tensor,
    /// Multiplies every row's gradient.
    pub factor: f32,
}

/// The known part of a teacher's distribution.
#[derive(Clone, Copy, Debug)]
pub enum TeacherLogits<'a> {
    /// The whole distribution.
    Whole {
        /// f32 [r, vocab].
        logits: &'a Tensor,
        /// f32 [2 x ranks, r]: all ranks' statistics.
        stats: &'a Tensor,
        /// Multiplies the logits first.
        scale: f32,
        /// `cap tanh(x / cap)`; 0 for none.
        softcap: f32,
    },
    /// The best tokens; the divergence is that of their probabilities.
    Best {
        /// i32 [r, k], no id twice in a row.
        ids: &'a Tensor,
        /// f32 [r, k]: natural log-probabilities.
        logps: &'a Tensor,
        /// Counts the rest of the mass as one more token on both sides; otherwise both sides are normalised to sum to
        /// one. The logarithm of the best tokens' mass is clamped to at most [`CLOSEST`], as TRL does.
        rest: bool,
    },
}

/// Upper bound of the logarithm of the best tokens' mass where the rest counts, so that the rest has a finite
/// logarithm.
pub const CLOSEST: f32 = -1e-7;

impl TeacherLogits<'_> {
    /// Rows of [`Divergence::parts`]: for a whole distribution the divergence and the mean of its slopes under the
    /// student; for `k` best tokens the student's head's value for each, 0 if another rank has the token.
    pub fn parts(&self) -> usize {
        match self {
            TeacherLogits::Whole { .. } => 2,
            TeacherLogits::Best { ids, .. } => ids.cols(),
        }
    }
}
