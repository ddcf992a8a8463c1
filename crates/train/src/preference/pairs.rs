//! Pairs of answers, the chosen one first.

use fathom_grad::CrossEntropyLoss;

use super::losses::{Pair, transported};
use super::slope::Slope;
use super::{Settings, answer, length};
use crate::micro_batch::MicroBatch;
use crate::objective::{Answers, LabelMetrics, Objective, ObjectiveSum, Weigh, WeightedLoss};

/// The objective of learning from pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs(pub Settings);

/// Names as in TRL.
const METRICS: [&str; 9] = [
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
    "nll_loss",
    "log_odds_ratio",
    "log_odds_chosen",
];

struct StreamPair {
    /// For both answers: position of each label, and the factor of its log-probability.
    labels: [Vec<(usize, f64)>; 2],
    pair: Pair,
    /// Sums of the log-probabilities.
    sums: [f64; 2],
    /// Weight of the pair.
    weight: f64,
}

/// Factor of the second temperature. At half the temperature the distribution is `p^2 / sum p^2`, so the loss there
/// minus the loss at the temperature itself is `-(log p - log sum p^2)`: how much less likely a token is, in
/// logarithms, than the policy's own tokens on average.
const SHARPER: f64 = 0.5;

/// Likeness of a document's answer to the policy's own: `exp` of the mean over its tokens of `log p - log sum p^2`
/// (WPO, equation 2).
fn likeness(answers: &Answers<'_>, doc: usize) -> f64 {
    let each =
        answer(answers.micro, doc).map(|at| f64::from(answers.losses[at]) - f64::from(answers.others[0][at]));
    let (sum, count) = each.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
    f64::exp(sum / f64::max(count, 1.0))
}

impl Pairs {
    fn sees(&self, answers: &Answers<'_>, first: usize) -> StreamPair {
        let (micro, settings) = (answers.micro, &self.0);
        let places = [first, first + 1].map(|doc| answer(micro, doc).collect::<Vec<_>>());
        let both = places[0].len().min(places[1].len());
        let factor = |at: usize| if at < both { 1.0 } else { settings.ld_alpha.unwrap_or(1.0) };
        let labels = places.map(|places| {
            let mean = if settings.averages { 1.0 / places.len().max(1) as f64 } else { 1.0 };
            places.into_iter().enumerate().map(|(at, place)| (place, mean * factor(at))).collect::<Vec<_>>()
        });
        let sum = |of: &dyn Fn(usize) -> f64| {
            [0, 1].map(|side: usize| labels[side].iter().map(|(at, factor)| factor * of(*at)).sum::<f64>())
        };
        let sums = sum(&|at| -f64::from(answers.losses[at]));
        let reference = sum(&|at| micro.reference.get(at).map_or(0.0, |logp| f64::from(*logp)));
        let shaped = |logp: Slope| match settings.alpha {
            0.0 => logp,
            alpha => (-(logp * -alpha).exp() + 1.0) * (1.0 / alpha),
        };
        let pair = Pair {
            chosen: shaped(Slope::first(sums[0])),
            rejected: shaped(Slope::second(sums[1])),
            reference,
            lengths: [first, first + 1].map(|doc| length(micro, doc)),
            rewards: [first, first + 1].map(|doc| f64::from(micro.facts.of(doc)[1])),
        };
        let weight =
            if settings.weighting { likeness(answers, first) * likeness(answers, first + 1) } else { 1.0 };
        StreamPair { labels, pair, sums, weight }
    }

    /// Adds the cross-entropy of the chosen answers. Returns the sum of the losses and the number of labels. For ORPO
    /// the prompts' labels count too.
    fn imitate(&self, answers: &Answers<'_>, weighed: &mut ObjectiveSum) -> [f64; 2] {
        let (micro, weight) = (answers.micro, self.0.sft_weight);
        let own = micro.totals();
        let all = micro.step.unwrap_or(own);
        // The sum is divided by the step's pairs, while a mean over labels is wanted.
        let factor = weight * all.documents / 2.0 / all.labels.max(1.0);
        let mut sum = 0.0;
        for doc in micro.docs[..micro.facts.documents()].iter().step_by(2) {
            for at in doc.clone().filter(|at| micro.labels[*at] >= 0) {
                sum += f64::from(answers.losses[at]);
                weighed.weights[at] += factor as f32;
            }
        }
        weighed.loss += factor * sum;
        [sum, own.labels]
    }
}

impl Objective for Pairs {
    fn name(&self) -> &'static str {
        self.0.name
    }

    /// Number of pairs.
    fn count(&self, micro: &MicroBatch) -> f64 {
        (micro.facts.documents() / 2) as f64
    }

    /// The cross-entropy; of a sharper distribution too, constant for the gradient, if pairs are weighted.
    fn terms(&self) -> Vec<WeightedLoss> {
        let sharper = WeightedLoss::new(0.0, CrossEntropyLoss { temperature: SHARPER });
        let also = self.0.weighting.then_some(sharper);
        [WeightedLoss::cross_entropy()].into_iter().chain(also).collect()
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }

    fn measured(&self) -> LabelMetrics {
        LabelMetrics::OfChosen
    }
}

impl Weigh for Pairs {
    fn metrics(&self) -> &[&'static str] {
        match self.0.sft_weight {
            _ if self.0.is_of_odds() => &METRICS,
            0.0 => &METRICS[..6],
            _ => &METRICS[..7],
        }
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let settings = &self.0;
        let firsts = (0..answers.micro.facts.documents() / 2).map(|pair| 2 * pair);
        let seen: Vec<StreamPair> = firsts.map(|first| self.sees(answers, first)).collect();
        let pairs: Vec<Pair> = seen.iter().map(|seen| seen.pair).collect();
        let mut losses = vec![Slope::default(); pairs.len()];
        for (loss, weight) in &settings.losses {
            let each: Vec<Slope> = if loss.sorts() {
                transported(&pairs, *loss, settings)
            } else {
                pairs.iter().map(|pair| pair.loss(*loss, settings)).collect()
            };
            losses.iter_mut().zip(each).for_each(|(sum, more)| *sum = *sum + more * *weight);
        }
        let mut weighed =
            ObjectiveSum { weights: vec![0.0; answers.losses.len()], ..ObjectiveSum::default() };
        let mut sums = [0.0; METRICS.len()];
        for (seen, loss) in seen.iter().zip(&losses) {
            let loss = *loss * seen.weight;
            weighed.loss += loss.value;
            for (labels, by) in seen.labels.iter().zip(loss.by) {
                // Derivatives by a label's loss, which is its negative log-probability.
                labels.iter().for_each(|(at, factor)| weighed.weights[*at] = (-by * factor) as f32);
            }
            let [chosen, rejected] = seen.pair.ratios().map(|ratio| settings.beta * ratio.value);
            let right = f64::from(u8::from(chosen > rejected));
            let odds = if settings.is_of_odds() { seen.pair.odds() } else { Slope::default() };
            let [w, l] = seen.sums;
            let ratio = odds.log_sigmoid().value;
            let more = [chosen, rejected, chosen - rejected, right, w, l, 0.0, ratio, odds.value];
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        let count = pairs.len() as f64;
        weighed.metrics = sums.iter().map(|sum| [*sum, count]).collect();
        if settings.sft_weight != 0.0 {
            weighed.metrics[6] = self.imitate(answers, &mut weighed);
        }
        weighed.metrics.truncate(self.metrics().len());
        weighed
    }
}
