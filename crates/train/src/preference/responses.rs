//! Several answers to one prompt with target likelihoods (SteerLM 2.0: Wang and others, 2024, "HelpSteer2-Preference",
//! as computed by NeMo-Aligner).
//!
//! For n answers `y_i` to a prompt `x` with attributes `a`, the target distribution among them is, by Bayes' rule, `w_i
//! = softmax_i(log P(a|x,y_i) + log P(y_i|x) - log Q'(y_i|a,x))`, and the policy's is `b_i = softmax_i(log Q(y_i|a,x) -
//! log Q'(y_i|a,x))`, where `Q'` is the model that wrote them. `sum_i (w_i - b_i) NLL_i` with constant factors has the
//! gradient of `KL(w | b)`.

use super::{answer, length};
use crate::micro_batch::MicroBatch;
use crate::objective::{Answers, Objective, ObjectiveSum, Weigh};

/// The objective for such groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Responses {
    /// Number of answers to each prompt.
    pub group: usize,
}

/// TRL has no such method; the first name is NeMo-Aligner's.
const METRICS: [&str; 2] = ["kl", "logps/wanted"];

/// `exp(x_i) / sum_j exp(x_j)`.
fn softmax(of: &[f64]) -> Vec<f64> {
    let most = of.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let each: Vec<f64> = of.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = each.iter().sum();
    each.into_iter().map(|x| x / sum).collect()
}

/// `w` and `b` of a group, from `log P(a|x,y) + log P(y|x) - log Q'(y|a,x)` and `log Q'(y|a,x)` of each answer, and
/// `log Q(y|a,x)`.
pub fn shares(known: &[[f64; 2]], logps: &[f64]) -> [Vec<f64>; 2] {
    let wanted: Vec<f64> = known.iter().map(|[wanted, _]| *wanted).collect();
    let own: Vec<f64> = known.iter().zip(logps).map(|([_, then], now)| now - then).collect();
    [softmax(&wanted), softmax(&own)]
}

/// `KL(w | b)`.
pub fn divergence([wanted, own]: &[Vec<f64>; 2]) -> f64 {
    let each = wanted.iter().zip(own).filter(|(w, _)| **w > 0.0);
    each.map(|(w, b)| w * (w.ln() - b.max(f64::MIN_POSITIVE).ln())).sum()
}

impl Objective for Responses {
    fn name(&self) -> &'static str {
        "steerlm2"
    }

    /// Number of prompts.
    fn count(&self, micro: &MicroBatch) -> f64 {
        (micro.facts.documents() / self.group) as f64
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }
}

impl Weigh for Responses {
    fn metrics(&self) -> &[&'static str] {
        &METRICS
    }

    /// For each prompt `sum_i (w_i - b_i) NLL_i`, divided by the mean length of its answers.
    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let micro = answers.micro;
        let mut weighed =
            ObjectiveSum { weights: vec![0.0; answers.losses.len()], ..ObjectiveSum::default() };
        let mut metrics = [[0.0; 2]; METRICS.len()];
        for first in (0..micro.facts.documents()).step_by(self.group) {
            let docs = first..first + self.group;
            let logp =
                |doc: usize| -> f64 { answer(micro, doc).map(|at| -f64::from(answers.losses[at])).sum() };
            let logps: Vec<f64> = docs.clone().map(logp).collect();
            let known = |doc: usize| [1, 2].map(|at| f64::from(micro.facts.of(doc)[at]));
            let both = shares(&docs.clone().map(known).collect::<Vec<_>>(), &logps);
            let tokens: f64 = docs.clone().map(|doc| length(micro, doc)).sum::<f64>() / self.group as f64;
            for (at, doc) in docs.enumerate() {
                let factor = (both[0][at] - both[1][at]) / tokens;
                weighed.loss -= factor * logps[at];
                answer(micro, doc).for_each(|at| weighed.weights[at] = factor as f32);
            }
            let wanted: f64 = both[0].iter().zip(&logps).map(|(w, logp)| w * logp).sum();
            for (metric, more) in [(0, divergence(&both)), (1, wanted)] {
                metrics[metric] = [metrics[metric][0] + more, metrics[metric][1] + 1.0];
            }
        }
        weighed.metrics = metrics.to_vec();
        weighed
    }
}

#[cfg(test)]
mod tests {
    use fathom_text::pack::Facts;

    use super::*;

    /// A group of three answers with two, one and three tokens, each after a prompt of one.
    fn group(losses: &[f32]) -> (MicroBatch, Vec<f32>) {
        let lengths = [2, 1, 3];
        let mut micro = MicroBatch::default();
        for tokens in lengths {
            let start = micro.ids.len();
            micro.ids.extend(vec![1; tokens + 1]);
            micro.labels.extend((0..=tokens).map(|at| if at < tokens { 1 } else { -100 }));
            micro.docs.push(start..micro.ids.len());
        }
        // Beginning of the answer, logarithm of the numerator, and Q'.
        let values = vec![1.0, -1.5, -4.0, 1.0, 0.25, -2.0, 1.0, -0.5, -6.5];
        micro.facts = Facts { width: 3, values };
        let mut all = Vec::new();
        let mut next = losses.iter();
        for tokens in lengths {
            all.extend(next.by_ref().take(tokens));
            all.push(0.0);
        }
        (micro, all)
    }

    #[test]
    fn shares_are_those_of_the_formula() {
        // softmax(-1.5, 0.25, -0.5), and softmax of logps -3, -2.5, -6 minus -4, -2, -6.5.
        let known = [[-1.5, -4.0], [0.25, -2.0], [-0.5, -6.5]];
        let [wanted, own] = shares(&known, &[-3.0, -2.5, -6.0]);
        let sum = |of: [f64; 3]| of.map(|x| x / of.iter().sum::<f64>());
        let want = sum([(-1.5f64).exp(), 0.25f64.exp(), (-0.5f64).exp()]);
        let have = sum([1.0f64.exp(), (-0.5f64).exp(), 0.5f64.exp()]);
        for (found, want) in wanted.iter().chain(&own).zip(want.iter().chain(&have)) {
            assert!((found - want).abs() < 1e-15, "{found} {want}");
        }
        // Weights whose ratio exceeds the range of the exponential.
        assert_eq!(
            shares(&[[-2000.0, 0.0], [0.0, 0.0]], &[0.0, -3000.0]),
            [[0.0, 1.0], [1.0, 0.0]].map(Vec::from)
        );
        assert_eq!(divergence(&[vec![0.25, 0.75], vec![0.25, 0.75]]), 0.0);
    }

    /// The gradient is that of the divergence, by finite differences.
    #[test]
    fn the_gradient_is_the_divergences() {
        let objective = Responses { group: 3 };
        let losses = [1.25, 0.75, 2.5, 1.0, 2.0, 3.0];
        let ask = |losses: &[f32]| {
            let (micro, losses) = group(losses);
            let weighed = Weigh::weigh(
                &objective,
                &Answers {
                    micro: &micro,
                    losses: &losses,
                    others: &[],
                    scores: &[],
                    padding: None,
                    at_first: false,
                },
            );
            (weighed, Objective::count(&objective, &micro))
        };
        let (weighed, count) = ask(&losses);
        assert_eq!(count, 1.0);
        let mean_tokens = 2.0;
        let places = [0, 1, 3, 5, 6, 7];
        for (at, place) in places.into_iter().enumerate() {
            let moved = |by: f32| {
                let mut moved = losses;
                moved[at] += by;
                ask(&moved).0.metrics[0][0]
            };
            let slope = (moved(1.0 / 64.0) - moved(-1.0 / 64.0)) * 32.0;
            let found = f64::from(weighed.weights[place]) * mean_tokens;
            assert!((found - slope).abs() < 1e-4, "{at}: {found} {slope}");
        }
        assert_eq!((weighed.weights[2], weighed.weights[4], weighed.weights[8]), (0.0, 0.0, 0.0));
        // The loss is the weighted cross-entropy.
        let by_hand: f64 = places
            .iter()
            .zip(losses)
            .map(|(at, loss)| f64::from(weighed.weights[*at]) * f64::from(loss))
            .sum();
        assert!((weighed.loss - by_hand).abs() < 1e-6, "{} {by_hand}", weighed.loss);
    }
}
