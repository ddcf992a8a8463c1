//! Importance weights for answers written by earlier weights: the probability ratio to the current weights scales each
//! token's loss (truncated importance sampling; Espeholt and others, 2018; the modes are those of TRL 1.16).

use std::collections::BTreeMap;

use super::judged::Question;
use super::pack::Doc;
use super::policies::Policies;
use crate::error::Result;
use crate::recipe::{ImportanceName, RlTable};
use crate::step::Trainer;

/// The weight of each token of an answer, from log-probabilities under the weights before an update and at sampling
/// time: their ratio, per token or per answer, limited by the recipe's bounds.
pub fn importance(how: &RlTable, before: &[f32], sampled: &[f32]) -> Vec<f64> {
    let logs = before.iter().zip(sampled).map(|(before, sampled)| f64::from(*before) - f64::from(*sampled));
    let least = how.importance_sampling_clip_min.unwrap_or(0.0);
    let most = how.importance_sampling_clip_max.unwrap_or(f64::INFINITY);
    let truncated = |log: f64| log.exp().clamp(least, most);
    let masked = |log: f64| Some(log.exp()).filter(|ratio| (least..=most).contains(ratio)).unwrap_or(0.0);
    use ImportanceName as I;
    match how.importance_sampling_mode {
        I::None => vec![1.0; before.len()],
        I::TokenTruncate => logs.map(truncated).collect(),
        I::TokenMask => logs.map(masked).collect(),
        I::SequenceTruncate => vec![truncated(logs.sum()); before.len()],
        I::SequenceMask => vec![masked(logs.sum()); before.len()],
    }
}

/// Multiplies each token's loss, except its divergence, by a non-negative weight: every surrogate is proportional to
/// its advantage. An empty list means 1.
pub(super) fn weigh(docs: &mut [Doc], weights: &[Vec<f64>]) {
    for (doc, weights) in docs.iter_mut().zip(weights) {
        for (advantage, weight) in doc.advantages.iter_mut().zip(weights) {
            *advantage = (f64::from(*advantage) * weight) as f32;
        }
    }
}

impl Policies {
    /// Evaluates the current weights on answers written by earlier ones. Their log-probabilities replace the sampler's,
    /// so that the first ratio of the loss is one; the returned weights, one per token, correct for the sampler.
    pub(super) fn correct(
        &self,
        policy: &Trainer,
        docs: &mut [Doc],
        seen: &mut BTreeMap<String, f64>,
    ) -> Result<Vec<Vec<f64>>> {
        let question = Question::Logps(self.how.temperature);
        let before = self.asked(policy, policy.pass(&self.asking), docs, question)?;
        let sampled =
            docs.iter_mut().zip(before).map(|(doc, before)| std::mem::replace(&mut doc.logps, before));
        let sampled: Vec<Vec<f32>> = sampled.collect();
        let each = docs.iter().zip(&sampled);
        let weights: Vec<Vec<f64>> =
            each.map(|(doc, sampled)| importance(&self.how, &doc.logps, sampled)).collect();
        let counted = || docs.iter().enumerate().filter(|(_, doc)| !doc.left_out).map(|(at, _)| at);
        let differences = counted().flat_map(|at| {
            let each = docs[at].logps.iter().zip(&sampled[at]);
            each.map(|(before, sampled)| (f64::from(*before) - f64::from(*sampled)).abs())
        });
        let differences: Vec<f64> = differences.collect();
        // Weights of whole answers count once per answer.
        let whole = self.how.importance_sampling_mode.is_of_answers();
        let of = |at: usize| &weights[at][..if whole { weights[at].len().min(1) } else { weights[at].len() }];
        let ratios: Vec<f64> = counted().flat_map(of).copied().collect();
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let errors: Vec<f64> = differences.iter().map(|difference| difference.exp()).collect();
        let extreme =
            |of: &[f64], pick: fn(f64, f64) -> f64| of.iter().copied().reduce(pick).unwrap_or(f64::NAN);
        for (name, value) in [
            ("token_mult_prob_error", mean(&errors)),
            ("sampling/sampling_logp_difference/mean", mean(&differences)),
            ("sampling/sampling_logp_difference/max", extreme(&differences, f64::max)),
            ("sampling/importance_sampling_ratio/min", extreme(&ratios, f64::min)),
            ("sampling/importance_sampling_ratio/mean", mean(&ratios)),
            ("sampling/importance_sampling_ratio/max", extreme(&ratios, f64::max)),
        ] {
            seen.insert(name.into(), value);
        }
        Ok(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Surrogate;
    use crate::recipe::PolicyName;

    #[test]
    fn weights_are_between_the_bounds() {
        use ImportanceName as I;
        let (before, sampled) = ([-1.0, -1.0, -0.5], [-1.0, -3.0, -1.0]);
        let [two, half] = [2.0f64, 0.5].map(f64::exp);
        for (mode, bounds, want) in [
            (I::None, [None, Some(3.0)], [1.0; 3]),
            (I::TokenTruncate, [None, Some(3.0)], [1.0, 3.0, half]),
            (I::TokenTruncate, [Some(1.2), None], [1.2, two, half]),
            (I::TokenMask, [None, Some(3.0)], [1.0, 0.0, half]),
            (I::TokenMask, [Some(1.2), None], [0.0, two, half]),
            (I::SequenceTruncate, [None, Some(3.0)], [3.0; 3]),
            (I::SequenceTruncate, [None, Some(20.0)], [2.5f64.exp(); 3]),
            (I::SequenceMask, [None, Some(3.0)], [0.0; 3]),
            (I::SequenceMask, [None, Some(20.0)], [2.5f64.exp(); 3]),
        ] {
            let [importance_sampling_clip_min, importance_sampling_clip_max] = bounds;
            let how = RlTable {
                importance_sampling_mode: mode,
                importance_sampling_clip_min,
                importance_sampling_clip_max,
                ..RlTable::default()
            };
            let found = importance(&how, &before, &sampled);
            assert!(found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{mode}: {found:?} {want:?}");
        }
    }

    #[test]
    fn answers_are_held_between_steps() {
        let how = RlTable { prompts: 2, answers: 3, max_answer_tokens: 10, ..RlTable::default() };
        assert_eq!(how.held_bytes(100, 17), 0);
        let late = RlTable { behind: 1, ..how.clone() };
        assert_eq!(late.held_bytes(100, 17), 6 * 4 * 110);
        let kept = RlTable { loss: PolicyName::Grpo, top_p: 0.9, ..late.clone() };
        // Three bytes per token.
        assert_eq!(kept.held_bytes(100, 17), 6 * (4 * 110 + 3 * 10));
        // Tokens that are learned also have advantages.
        assert_eq!(RlTable { minibatches: 2, ..late }.held_bytes(100, 17), 6 * 4 * (110 + 120));
    }

    /// TRL multiplies a token's loss by its weight; here the advantage is multiplied.
    #[test]
    fn a_weighed_advantage_is_a_weighed_loss() {
        let clipped = Surrogate::Clipped { low: 0.2, high: 0.28, delta: Some(2.0), dual: Some(3.0) };
        let cispo = Surrogate::Cispo { low: Some(0.2), high: 1.28 };
        let sapo = Surrogate::Sapo { positive: 1.0, negative: 1.05 };
        for surrogate in [clipped, cispo, sapo, Surrogate::Score] {
            for (ratio, advantage, weight) in
                [(0.5, 1.3, 0.7), (1.1, -0.4, 2.5), (1.9, 0.8, 3.0), (4.5, -1.0, 0.5), (1.0, 2.0, 0.0)]
            {
                let [whole, found] = [advantage, weight * advantage].map(|of| surrogate.of(ratio, -0.3, of));
                let same =
                    found.iter().zip(whole).all(|(found, whole)| (found - weight * whole).abs() < 1e-12);
                assert!(same, "{surrogate:?} at {ratio}: {found:?} {whole:?} {weight}");
            }
        }
    }
}
