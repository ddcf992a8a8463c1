//! The losses of reinforcement learning, in f64 on the host: derivatives by the current log-probabilities, given those
//! at sampling time. A loss consists of a *surrogate* of each token's ratio and advantage, a term for the divergence
//! from a reference, and a *reduction*, which determines token weights and the divisor of the sum.

use std::ops::Range;

use fathom_grad::{CrossEntropyLoss, EntropyLoss};

use crate::micro_batch::MicroBatch;
use crate::objective::{self, Answers, Objective, ObjectiveSum, Weigh, WeightedLoss};

/// The loss of a token with ratio `r` (current to sampled) and advantage `A`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Surrogate {
    /// `-min(r A, clip(r, 1 - low, 1 + high) A)` (PPO: Schulman and others, 2017, equation 7).
    Clipped {
        /// Range below 1.
        low: f64,
        /// Range above 1.
        high: f64,
        /// Upper limit of the unclipped ratio (TRL `delta`).
        delta: Option<f64>,
        /// For negative A, upper limit `-c A` of the loss (dual clip: Ye and others, 2020, equation 5).
        dual: Option<f64>,
    },
    /// `-clip(r) A log p` with a constant clipped ratio (CISPO: MiniMax, 2025, equations 4 and 5), from 1 - low, if
    /// given, to `high`.
    Cispo {
        /// Range below 1; `None` means down to 0.
        low: Option<f64>,
        /// Upper limit of the ratio.
        high: f64,
    },
    /// `-4 / t sigmoid(t (r - 1)) A` (SAPO: Gao and others, 2025), with t chosen by the advantage's sign.
    Sapo {
        /// For positive advantages.
        positive: f64,
        /// For other advantages.
        negative: f64,
    },
    /// `-A log p` (REINFORCE: Williams, 1992).
    Score,
}

/// The unit of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A token.
    Token,
    /// An answer: `exp` of the mean of its tokens' log-ratios (GSPO: Zheng and others, 2025, equation 7).
    Sequence,
    /// An answer: `exp` of their sum (RLOO).
    SequenceSum,
}

/// Token weights, and the divisor of the sum over a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
    /// The mean over answers of the mean over their tokens.
    Answers,
    /// The mean over the tokens of each micro-batch, averaged over micro-batches (TRL's `bnpo`).
    LocalTokens,
    /// The mean over the tokens of the whole step (TRL's `dapo`).
    Tokens,
    /// The sum, divided by this number of tokens per answer (TRL's `dr_grpo`).
    Constant(f64),
}

/// Estimator of the divergence from the reference at a sampled token; `d` is the reference's log-probability minus the
/// model's (Schulman, 2020, <http://joschu.net/blog/kl-approx.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// `-d`.
    K1,
    /// `d^2 / 2`.
    K2,
    /// `exp(d) - d - 1`.
    K3,
}

impl Estimator {
    /// The estimate and its derivative by the model's log-probability.
    pub fn of(self, logp: f64, reference: f64) -> [f64; 2] {
        let d = reference - logp;
        match self {
            Estimator::K1 => [-d, 1.0],
            Estimator::K2 => [d * d / 2.0, -d],
            Estimator::K3 => [d.exp() - d - 1.0, 1.0 - d.exp()],
        }
    }
}

/// The divergence term of a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Its weight; with 0 it is only measured.
    pub beta: f64,
    /// Its estimator.
    pub estimator: Estimator,
    /// True if it is multiplied by the ratio, which makes it unbiased off policy (TRL `use_bias_correction_kl`).
    pub corrected: bool,
}

/// The loss of a value head: half the squared error of the return, for the value or for the value clipped around the
/// one at sampling time, whichever is larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Values {
    /// Its weight.
    pub coefficient: f64,
    /// Maximum change of a value since sampling.
    pub clip: Option<f64>,
}

/// Use of the entropies of the distributions at an answer's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entropies {
    /// Share of a micro-batch's tokens, those with the largest entropies, whose surrogates count (TRL
    /// `top_entropy_quantile`: Wang and others, 2025, <https://arxiv.org/abs/2506.01939>). The divergence from the
    /// reference counts at all tokens.
    pub top: f64,
    /// Factor of those tokens' mean entropy, which is subtracted from the loss (TRL `entropy_coef`).
    pub coefficient: f64,
}

impl Entropies {
    /// No use of entropies.
    pub const NONE: Entropies = Entropies { top: 1.0, coefficient: 0.0 };
}

/// A policy's loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Its name in recipes.
    pub name: &'static str,
    /// The loss of each token.
    pub surrogate: Surrogate,
    /// The unit of ratios.
    pub level: Level,
    /// Token weights and divisor.
    pub reduction: Reduction,
    /// Divergence from the reference, if micro-batches have its log-probabilities.
    pub divergence: Divergence,
    /// Loss of the value head, if there is one.
    pub values: Option<Values>,
    /// Use of the entropies of the tokens' distributions.
    pub entropies: Entropies,
    /// Temperature of the distribution that answers are sampled from.
    pub temperature: f64,
    /// True if that distribution was limited to some tokens, whose masks are known.
    pub keeps: bool,
}

/// Names of metrics, TRL's where it has one. A mean over nothing is not reported.
const METRICS: [&str; 14] = [
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "kl",
    "probs_ratio",
    "token_mult_prob_error",
    "policy/approxkl_avg",
    "approx_entropy",
    "loss/policy_avg",
    "loss/value_avg",
    "val/clipfrac_avg",
    "val/error",
    "val/mean",
    "sampling_logp_difference/mean",
];

impl Surrogate {
    /// The value at a ratio and log-probability, and its derivatives by both.
    pub fn of(self, ratio: f64, logp: f64, advantage: f64) -> [f64; 3] {
        match self {
            Surrogate::Clipped { low, high, delta, dual } => {
                let [value, slope] = clipped(ratio, advantage, [low, high], [delta, dual]);
                [value, slope, 0.0]
            }
            Surrogate::Cispo { low, high } => {
                let weight = advantage * ratio.min(high).max(low.map_or(0.0, |low| 1.0 - low));
                [-weight * logp, 0.0, -weight]
            }
            Surrogate::Sapo { positive, negative } => {
                let heat = if advantage > 0.0 { positive } else { negative };
                let sigmoid = 1.0 / (1.0 + (-heat * (ratio - 1.0)).exp());
                [-4.0 / heat * sigmoid * advantage, -4.0 * sigmoid * (1.0 - sigmoid) * advantage, 0.0]
            }
            Surrogate::Score => [-advantage * logp, 0.0, -advantage],
        }
    }

    /// Flags of a ratio that is clipped below, and above.
    fn beyond(self, ratio: f64, advantage: f64) -> [bool; 2] {
        match self {
            Surrogate::Clipped { low, high, .. } => {
                [ratio < 1.0 - low && advantage < 0.0, ratio > 1.0 + high && advantage > 0.0]
            }
            Surrogate::Cispo { low, high } => {
                [low.is_some_and(|low| ratio < 1.0 - low) && advantage < 0.0, ratio > high && advantage > 0.0]
            }
            Surrogate::Sapo { .. } | Surrogate::Score => [false; 2],
        }
    }
}

/// The clipped surrogate and its derivative by the ratio.
fn clipped(ratio: f64, advantage: f64, [low, high]: [f64; 2], [delta, dual]: [Option<f64>; 2]) -> [f64; 2] {
    let free = delta.map_or(ratio, |delta| ratio.min(delta));
    let within = ratio.clamp(1.0 - low, 1.0 + high);
    // The larger of two losses; within the range they are equal.
    let [mut value, mut slope] = if -free * advantage >= -within * advantage {
        [-free * advantage, if free == ratio { -advantage } else { 0.0 }]
    } else {
        [-within * advantage, if within == ratio { -advantage } else { 0.0 }]
    };
    if let Some(most) = dual.filter(|_| advantage < 0.0)
        && value > -most * advantage
    {
        [value, slope] = [-most * advantage, 0.0];
    }
    [value, slope]
}

/// Labelled tokens of a micro-batch's answers.
fn labelled(micro: &MicroBatch) -> impl Iterator<Item = usize> + Clone {
    let answers = micro.docs[..micro.rolled.answers].iter().cloned().flatten();
    answers.filter(|at| micro.labels[*at] >= 0)
}

/// An answer of a micro-batch: the positions of its labels and their log-probabilities.
struct Answer<'a> {
    at: Vec<usize>,
    logps: Vec<f64>,
    micro: &'a MicroBatch,
}

impl Answer<'_> {
    fn of<'a>(answers: &Answers<'a>, doc: &Range<usize>) -> Answer<'a> {
        let micro = answers.micro;
        let at: Vec<usize> = doc.clone().filter(|at| micro.labels[*at] >= 0).collect();
        let logps = at.iter().map(|at| -f64::from(answers.losses[*at])).collect();
        Answer { at, logps, micro }
    }

    /// Current log-probabilities minus those at sampling time.
    fn log_ratios(&self) -> Vec<f64> {
        let then = self.at.iter().map(|at| f64::from(self.micro.rolled.logps[*at]));
        self.logps.iter().zip(then).map(|(now, then)| now - then).collect()
    }
}

/// Accumulators for the metrics.
#[derive(Default)]
struct MetricSums([[f64; 2]; METRICS.len()]);

impl MetricSums {
    fn add(&mut self, name: &str, value: f64) {
        if let Some(at) = METRICS.iter().position(|other| *other == name) {
            self.0[at] = [self.0[at][0] + value, self.0[at][1] + 1.0];
        }
    }
}

impl Policy {
    /// Weight of a token of an answer with `tokens` tokens, in a micro-batch with `all` labels.
    fn weight(&self, tokens: usize, all: u64) -> f64 {
        match self.reduction {
            Reduction::Answers => 1.0 / tokens as f64,
            Reduction::LocalTokens => 1.0 / all.max(1) as f64,
            Reduction::Tokens => 1.0,
            Reduction::Constant(most) => 1.0 / most,
        }
    }

    /// The tokens of a micro-batch whose surrogates count, if not all do: those with an entropy of at least the
    /// quantile, which is interpolated in f32 like `torch.quantile`.
    fn kept(&self, answers: &Answers<'_>) -> Option<Vec<bool>> {
        if self.entropies.top >= 1.0 {
            return None;
        }
        let labelled = labelled(answers.micro);
        let mut sorted: Vec<f32> = labelled.clone().map(|at| answers.others[0][at]).collect();
        sorted.sort_by(f32::total_cmp);
        let place = (1.0 - self.entropies.top) as f32 * sorted.len().saturating_sub(1) as f32;
        let [below, above] = [place.floor(), place.ceil()].map(|at| sorted.get(at as usize).copied());
        let least = below.zip(above).map_or(0.0, |(below, above)| below + (above - below) * place.fract());
        let mut kept = vec![false; answers.others[0].len()];
        labelled.for_each(|at| kept[at] = answers.others[0][at] >= least);
        Some(kept)
    }

    /// Subtracts the mean entropy of the tokens that count. Each micro-batch's mean is weighted by its part of the
    /// divisor of the policy's sum, so that the total divided by all parts is a mean.
    fn reward_entropy(&self, answers: &Answers<'_>, kept: Option<&[bool]>, weighed: &mut ObjectiveSum) {
        let counts = |at: &usize| kept.is_none_or(|kept| kept[*at]);
        let tokens = labelled(answers.micro).filter(counts);
        let each =
            self.entropies.coefficient * self.count(answers.micro) / tokens.clone().count().max(1) as f64;
        let mut by = vec![0.0; answers.others[0].len()];
        for at in tokens {
            weighed.loss -= each * f64::from(answers.others[0][at]);
            by[at] = -each as f32;
        }
        weighed.others = vec![by];
    }

    /// Adds an answer's terms. `kept` selects the tokens whose surrogates count, if not all do.
    fn answer(
        &self,
        answer: &Answer<'_>,
        (all, kept): (u64, Option<&[bool]>),
        weighed: &mut ObjectiveSum,
        seen: &mut MetricSums,
    ) {
        let micro = answer.micro;
        let (logs, count) = (answer.log_ratios(), answer.at.len() as f64);
        let sum: f64 = logs.iter().sum();
        // The ratio of each token, and the share of its derivative by the log-ratio that belongs to each token.
        let (ratios, share): (Vec<f64>, f64) = match self.level {
            Level::Token => (logs.iter().map(|log| log.exp()).collect(), 1.0),
            Level::Sequence => (vec![(sum / count).exp(); logs.len()], 1.0 / count),
            Level::SequenceSum => (vec![sum.exp(); logs.len()], 1.0),
        };
        let weight = self.weight(answer.at.len(), all);
        // Accumulated derivative by the ratio, over all tokens if they share the answer's ratio.
        let mut by_ratio = 0.0;
        for (index, at) in answer.at.iter().enumerate() {
            let (logp, ratio) = (answer.logps[index], ratios[index]);
            let advantage = f64::from(micro.rolled.advantages[*at]);
            let counts = f64::from(u8::from(kept.is_none_or(|kept| kept[*at])));
            let [value, mut of_ratio, mut of_logp] =
                self.surrogate.of(ratio, logp, advantage).map(|term| counts * term);
            weighed.loss += weight * value;
            seen.add("loss/policy_avg", value);
            if let Some(reference) = micro.reference.get(*at) {
                let Divergence { beta, estimator, corrected } = self.divergence;
                let [kl, slope] = estimator.of(logp, f64::from(*reference));
                let factor = if corrected { ratio } else { 1.0 };
                weighed.loss += weight * beta * kl * factor;
                of_logp += beta * slope * factor;
                of_ratio += if corrected { beta * kl } else { 0.0 };
                seen.add("kl", kl * factor);
            }
            let slope = of_ratio * ratio;
            let own = if self.level == Level::Token { of_logp + slope } else { of_logp };
            by_ratio += if self.level == Level::Token { 0.0 } else { weight * slope * share };
            weighed.weights[*at] -= (weight * own) as f32;
            self.measure([logs[index], logp], ratio, micro.rolled.fresh, seen);
            if index == 0 || self.level == Level::Token {
                self.clipped(ratio, advantage, seen);
            }
        }
        // Accumulated in f64 and rounded once per token. The sign is that of a loss, the negative log-probability.
        for at in answer.at.iter().filter(|_| by_ratio != 0.0) {
            weighed.weights[*at] = (f64::from(weighed.weights[*at]) - by_ratio) as f32;
        }
    }

    /// Counts clipped ratios: of tokens, or of answers if ratios are per answer.
    fn clipped(&self, ratio: f64, advantage: f64, seen: &mut MetricSums) {
        let [low, high] = self.surrogate.beyond(ratio, advantage).map(|is| if is { 1.0 } else { 0.0 });
        seen.add("clip_ratio/low_mean", low);
        seen.add("clip_ratio/high_mean", high);
        seen.add("clip_ratio/region_mean", low + high);
    }

    fn measure(&self, [log, logp]: [f64; 2], ratio: f64, fresh: bool, seen: &mut MetricSums) {
        seen.add("probs_ratio", ratio);
        seen.add("policy/approxkl_avg", log * log / 2.0);
        seen.add("approx_entropy", -logp);
        if fresh {
            // With the weights that sampled these tokens, this is exactly one.
            seen.add("token_mult_prob_error", log.abs().exp());
            seen.add("sampling_logp_difference/mean", log.abs());
        }
    }

    /// Adds the value head's terms.
    fn values(
        &self,
        answers: &Answers<'_>,
        doc: &Range<usize>,
        weighed: &mut ObjectiveSum,
        seen: &mut MetricSums,
    ) {
        let Some(Values { coefficient, clip }) = self.values else { return };
        let micro = answers.micro;
        let at: Vec<usize> = doc.clone().filter(|at| micro.labels[*at] >= 0).collect();
        let weight = coefficient * self.weight(at.len(), micro.valid());
        for at in at {
            let value = f64::from(answers.scores[at]);
            let [then, target] = [&micro.rolled.values, &micro.rolled.returns].map(|of| f64::from(of[at]));
            let near = clip.map_or(value, |clip| value.clamp(then - clip, then + clip));
            let [free, held] = [value, near].map(|value| (value - target).powi(2) / 2.0);
            let slope = if free >= held || near == value { value - target } else { 0.0 };
            weighed.loss += weight * free.max(held);
            weighed.scores[at] += (weight * slope) as f32;
            seen.add("loss/value_avg", free.max(held));
            seen.add("val/clipfrac_avg", if held > free { 1.0 } else { 0.0 });
            seen.add("val/error", value - target);
            seen.add("val/mean", value);
        }
    }
}

impl Objective for Policy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        match self.reduction {
            Reduction::Answers | Reduction::Constant(_) => micro.rolled.answers as f64,
            Reduction::LocalTokens => f64::from(u8::from(micro.rolled.answers > 0)),
            Reduction::Tokens => micro.valid() as f64,
        }
    }

    /// The cross-entropy, and the entropy if it counts or chooses tokens.
    fn terms(&self) -> Vec<WeightedLoss> {
        let (temperature, Entropies { top, coefficient }) = (self.temperature, self.entropies);
        let entropy = WeightedLoss::new(f64::from(coefficient != 0.0), EntropyLoss { temperature });
        let asked = coefficient != 0.0 || top < 1.0;
        let cross_entropy = WeightedLoss::new(1.0, CrossEntropyLoss { temperature });
        [cross_entropy].into_iter().chain(asked.then_some(entropy)).collect()
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }

    fn measured(&self) -> objective::LabelMetrics {
        objective::LabelMetrics::Entropy
    }
}

impl Weigh for Policy {
    fn metrics(&self) -> &[&'static str] {
        &METRICS
    }

    fn scores(&self) -> bool {
        self.values.is_some()
    }

    /// The reference is evaluated once per rollout instead.
    fn asks_reference(&self) -> bool {
        false
    }

    fn keeps(&self) -> bool {
        self.keeps
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let micro = answers.micro;
        let mut weighed = ObjectiveSum {
            weights: vec![0.0; answers.losses.len()],
            scores: vec![0.0; answers.scores.len()],
            ..ObjectiveSum::default()
        };
        let (mut seen, kept) = (MetricSums::default(), self.kept(answers));
        let all = (micro.valid(), kept.as_deref());
        for doc in &micro.docs[..micro.rolled.answers] {
            let answer = Answer::of(answers, doc);
            if answer.at.is_empty() {
                continue;
            }
            self.answer(&answer, all, &mut weighed, &mut seen);
            self.values(answers, doc, &mut weighed, &mut seen);
        }
        if self.entropies.coefficient != 0.0 {
            self.reward_entropy(answers, kept.as_deref(), &mut weighed);
        }
        weighed.metrics = seen.0.to_vec();
        weighed
    }
}

#[cfg(test)]
#[path = "loss_tests.rs"]
mod tests;
