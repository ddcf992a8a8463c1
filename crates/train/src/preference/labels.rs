//! Answers labelled as desirable or undesirable (KTO, Ethayarajh and others, 2024).

use std::collections::BTreeMap;

use fathom_grad::EntropyLoss;

use super::{answer, logps};
use crate::micro_batch::MicroBatch;
use crate::objective::{Answers, Objective, ObjectiveSum, Weigh, WeightedLoss};
use crate::preference::Slope;

/// The objective for labelled answers. Each is followed by its prompt with another row's answer: the reference point of
/// gains is the mean log-ratio of these, or 0. It is constant for the gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct KtoObjective {
    /// Strength of the penalty for diverging from the reference.
    pub beta: f64,
    /// Weight of the losses of desirable answers.
    pub desirable: f64,
    /// Weight of the losses of the others.
    pub undesirable: f64,
    /// True if the reference point is 0 (TRL's `apo_zero_unpaired`).
    pub zero: bool,
    /// True if the mean is over the whole step, whose micro-batches are then read twice; otherwise over each
    /// micro-batch, as in TRL.
    pub of_step: bool,
}

/// Log-ratio of a document's answer under the model and under the reference.
fn ratio(answers: &Answers<'_>, doc: usize) -> f64 {
    let [own, reference] = logps(answers, doc);
    own - reference
}

const METRICS: [&str; 6] =
    ["rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected", "kl", "entropy"];

impl Objective for KtoObjective {
    fn name(&self) -> &'static str {
        "kto"
    }

    /// Number of answers.
    fn count(&self, micro: &MicroBatch) -> f64 {
        (micro.facts.documents() / 2) as f64
    }

    /// The cross-entropy, and the entropy to be reported.
    fn terms(&self) -> Vec<WeightedLoss> {
        let entropy = WeightedLoss::new(0.0, EntropyLoss { temperature: 1.0 });
        vec![WeightedLoss::cross_entropy(), entropy]
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }
}

impl Weigh for KtoObjective {
    fn metrics(&self) -> &[&'static str] {
        &METRICS
    }

    fn looks_ahead(&self) -> bool {
        self.of_step && !self.zero
    }

    /// Sum of the log-ratios of mismatched answers, and their number.
    fn ahead(&self, answers: &Answers<'_>) -> [f64; 2] {
        let all = answers.micro.facts.documents() / 2;
        [(0..all).map(|at| ratio(answers, 2 * at + 1)).sum(), all as f64]
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let micro = answers.micro;
        let all = micro.facts.documents() / 2;
        let of_step = micro.step.and_then(|step| step.ahead).filter(|_| self.looks_ahead());
        let [sum, count] = of_step.unwrap_or_else(|| self.ahead(answers));
        let mean = sum / count.max(1.0);
        let z = if self.zero { 0.0 } else { mean.max(0.0) };
        let mut weighed =
            ObjectiveSum { weights: vec![0.0; answers.losses.len()], ..ObjectiveSum::default() };
        let mut metrics = [[0.0; 2]; METRICS.len()];
        for doc in (0..all).map(|at| 2 * at) {
            let [own, reference] = logps(answers, doc);
            let x = Slope::first(own) - reference;
            let wanted = micro.facts.of(doc)[1] > 0.5;
            let gain = (x - z) * if wanted { self.beta } else { -self.beta };
            let weight = if wanted { self.desirable } else { self.undesirable };
            let loss = (-gain.sigmoid() + 1.0) * weight;
            weighed.loss += loss.value;
            answer(micro, doc).for_each(|at| weighed.weights[at] = -loss.by[0] as f32);
            // The answers alone: those that were mismatched are not the rows'.
            let entropies = answers.others.first().map_or(&[][..], Vec::as_slice);
            for entropy in answer(micro, doc).filter_map(|at| entropies.get(at)) {
                metrics[5] = [metrics[5][0] + f64::from(*entropy), metrics[5][1] + 1.0];
            }
            let side = usize::from(!wanted);
            for (metric, more) in [(side, self.beta * x.value), (2 + side, own)] {
                metrics[metric] = [metrics[metric][0] + more, metrics[metric][1] + 1.0];
            }
        }
        // One per micro-batch that has any.
        metrics[4] = [z, f64::from(u8::from(all > 0))];
        weighed.metrics = metrics.to_vec();
        weighed
    }

    fn derive(&self, means: &mut BTreeMap<String, f64>) {
        if let (Some(chosen), Some(rejected)) = (means.get(METRICS[0]), means.get(METRICS[1])) {
            means.insert("rewards/margins".into(), chosen - rejected);
        }
    }
}
