//! Objectives that learn from comparisons: of pairs of answers (DPO and its forms, CPO, SimPO, ORPO, RPO), of answers that are wanted or
//! not (KTO), of several answers that are as likely as they should be (SteerLM 2), and reward models.
//!
//! A micro batch has the answers as documents, those that belong together one after the other, and says in its facts where each answer
//! begins. Losses are of sums over documents; [`slope`] has their derivatives. Sums are divided by the pairs of the whole step, and
//! the cross-entropy that some add by the labels of the whole step, so that neither accumulation nor packing nor ranks change a number. What
//! compares a micro batch as a whole does: the sorted losses (`aot`, `aot_unpaired`), as in TRL. KTO's divergence is that of the whole step
//! unless it is asked for by micro batches.

mod labels;
mod losses;
mod pairs;
mod responses;
mod rewards;
mod slope;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::micro_batch::MicroBatch;
use crate::objective::Answers;

pub use labels::Wanted;
pub use losses::Pair;
pub use pairs::Pairs;
pub use responses::{Responses, divergence, shares};
pub use rewards::{Reward, RewardLoss};
pub use slope::Slope;

/// Which loss of a pair, by TRL's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // Their papers are with the recipe's names.
pub enum PairLoss {
    #[default]
    Sigmoid,
    SigmoidNorm,
    Hinge,
    Ipo,
    IpoSum,
    ExoPair,
    NcaPair,
    Robust,
    BcoPair,
    SppoHard,
    Aot,
    AotUnpaired,
    ApoZero,
    ApoDown,
    Discopop,
    Sft,
    Simpo,
    OddsRatio,
    BackwardKl,
    ForwardKl,
    Squared,
}

impl PairLoss {
    /// Whether it compares the pairs of a micro batch with each other.
    pub fn sorts(self) -> bool {
        matches!(self, PairLoss::Aot | PairLoss::AotUnpaired)
    }
}

/// A divergence from the reference model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Divergence {
    /// That of DPO.
    #[default]
    ReverseKl,
    /// Forward.
    ForwardKl,
    /// Jensen and Shannon's.
    JensenShannon,
    /// By a coefficient.
    Alpha,
}

/// How pairs are learned from.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The method's name.
    pub name: &'static str,
    /// The losses with their weights.
    pub losses: Vec<(PairLoss, f64)>,
    /// How strongly the model is kept where it was: the smaller, the further it may go.
    pub beta: f64,
    /// Share of the labels that are taken for wrong.
    pub label_smoothing: f64,
    /// The divergence from the reference.
    pub divergence: Divergence,
    /// Its coefficient.
    pub f_alpha: f64,
    /// Factor of the log-probabilities of the tokens by which an answer is longer than the other (LD-DPO).
    pub ld_alpha: Option<f64>,
    /// Weight of the cross-entropy of the chosen answers, a mean over their tokens.
    pub sft_weight: f64,
    /// Log-probabilities of answers are means over their tokens.
    pub averages: bool,
    /// SimPO's target margin, times beta already.
    pub gamma: f64,
    /// AlphaPO's exponent: log-probabilities become `(1 - p^-alpha) / alpha`, at 0 they stay.
    pub alpha: f64,
    /// Discopop's temperature.
    pub discopop_tau: f64,
    /// RPO's factor of the given rewards.
    pub reward_scale: f64,
    /// A pair weighs as much as the policy's own answers are like it (WPO: Zhou and others, 2024, equation 2).
    pub weighting: bool,
}

impl Settings {
    /// Whether a loss is ORPO's.
    fn is_of_odds(&self) -> bool {
        self.losses.iter().any(|(loss, _)| *loss == PairLoss::OddsRatio)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            name: "dpo",
            losses: vec![(PairLoss::Sigmoid, 1.0)],
            beta: 0.1,
            label_smoothing: 0.0,
            divergence: Divergence::ReverseKl,
            f_alpha: 0.5,
            ld_alpha: None,
            sft_weight: 0.0,
            averages: false,
            gamma: 0.5,
            alpha: 0.0,
            discopop_tau: 0.05,
            reward_scale: 1.0,
            weighting: false,
        }
    }
}

/// The labels of an answer: those of a document's tokens from where the answer begins, by their places in the stream.
fn answer<'a>(micro: &'a MicroBatch, doc: usize) -> impl Iterator<Item = usize> + 'a {
    let Range { start, end } = micro.docs[doc];
    // A place's label is the token after it.
    let begins = (micro.facts.of(doc)[0] as usize).max(1) - 1;
    (start + begins..end).filter(|at| micro.labels[*at] >= 0)
}

/// Tokens of an answer, the first of a document too.
fn length(micro: &MicroBatch, doc: usize) -> f64 {
    (micro.docs[doc].len() as f64 - f64::from(micro.facts.of(doc)[0])).max(1.0)
}

/// The log-probability of an answer by the model, and by the reference.
fn logps(answers: &Answers<'_>, doc: usize) -> [f64; 2] {
    let reference = |at: usize| answers.micro.reference.get(at).map_or(0.0, |logp| f64::from(*logp));
    let add =
        |[own, other]: [f64; 2], at: usize| [own - f64::from(answers.losses[at]), other + reference(at)];
    answer(answers.micro, doc).fold([0.0; 2], add)
}
