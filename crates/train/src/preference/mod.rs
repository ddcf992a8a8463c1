//! Objectives that learn from comparisons: pairs of answers (DPO and its variants, CPO, SimPO, ORPO, RPO), answers
//! labelled as desirable or not (KTO), several answers with target likelihoods (SteerLM 2), and reward models.
//!
//! The answers of a micro-batch are documents, with those that belong together adjacent; its facts give the position
//! where each answer begins. Losses are of sums over documents; [`slope`] has their derivatives. Sums are divided by
//! the pairs of the whole step, and the cross-entropy that some add by the labels of the whole step, so that
//! accumulation, packing and ranks change no number. Exceptions compare a micro-batch as a whole: the sorted losses
//! (`aot`, `aot_unpaired`), as in TRL, and KTO's divergence if it is set to be per micro-batch.

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

pub use labels::KtoObjective;
pub use losses::Pair;
pub use pairs::Pairs;
pub use responses::{Responses, divergence, shares};
pub use rewards::{Reward, RewardLoss};
pub use slope::Slope;

/// A loss of a pair, by TRL's name.
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
    /// True if it compares the pairs of a micro-batch with each other.
    pub fn sorts(self) -> bool {
        matches!(self, PairLoss::Aot | PairLoss::AotUnpaired)
    }
}

/// A divergence from the reference model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Divergence {
    /// Reverse KL, as in DPO.
    #[default]
    ReverseKl,
    /// Forward KL.
    ForwardKl,
    /// Jensen-Shannon.
    JensenShannon,
    /// Alpha divergence with a coefficient.
    Alpha,
}

/// Settings of learning from pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The method's name.
    pub name: &'static str,
    /// The losses with their weights.
    pub losses: Vec<(PairLoss, f64)>,
    /// Strength of the penalty for diverging from the reference: smaller values permit larger changes.
    pub beta: f64,
    /// Assumed share of wrong labels.
    pub label_smoothing: f64,
    /// The divergence from the reference.
    pub divergence: Divergence,
    /// Its coefficient.
    pub f_alpha: f64,
    /// Factor of the log-probabilities of the tokens by which an answer exceeds the other in length (LD-DPO).
    pub ld_alpha: Option<f64>,
    /// Weight of the cross-entropy of the chosen answers, a mean over their tokens.
    pub sft_weight: f64,
    /// True if log-probabilities of answers are means over their tokens.
    pub averages: bool,
    /// SimPO's target margin, already multiplied by beta.
    pub gamma: f64,
    /// AlphaPO's exponent: log-probabilities become `(1 - p^-alpha) / alpha`; 0 leaves them unchanged.
    pub alpha: f64,
    /// Discopop's temperature.
    pub discopop_tau: f64,
    /// RPO's factor for the given rewards.
    pub reward_scale: f64,
    /// True if a pair's weight is the likeness of its answers to the policy's own (WPO: Zhou and others, 2024, equation
    /// 2).
    pub weighting: bool,
}

impl Settings {
    /// True if one of the losses is ORPO's.
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

/// Positions in the stream of an answer's labels: those of a document's tokens from the answer's beginning.
fn answer<'a>(micro: &'a MicroBatch, doc: usize) -> impl Iterator<Item = usize> + 'a {
    let Range { start, end } = micro.docs[doc];
    // The label at a position is the next token.
    let begins = (micro.facts.of(doc)[0] as usize).max(1) - 1;
    (start + begins..end).filter(|at| micro.labels[*at] >= 0)
}

/// Number of tokens of an answer; it counts the first token of a document too.
fn length(micro: &MicroBatch, doc: usize) -> f64 {
    (micro.docs[doc].len() as f64 - f64::from(micro.facts.of(doc)[0])).max(1.0)
}

/// Log-probabilities of an answer under the model and under the reference.
fn logps(answers: &Answers<'_>, doc: usize) -> [f64; 2] {
    let reference = |at: usize| answers.micro.reference.get(at).map_or(0.0, |logp| f64::from(*logp));
    let add =
        |[own, other]: [f64; 2], at: usize| [own - f64::from(answers.losses[at]), other + reference(at)];
    answer(answers.micro, doc).fold([0.0; 2], add)
}
