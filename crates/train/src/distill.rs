//! Distillation: besides the labels, a student learns a teacher's distribution of the next token. The teacher is a
//! frozen model that runs in the same step, with its whole vocabulary, or a column of its best tokens stored with the
//! text.
//!
//! A step minimises the weighted mean of `(1 - ratio) CE + ratio D` over tokens with labels, where D is the divergence
//! of [`fathom_tensor::Divergence`] at the temperature, not multiplied by the squared temperature. Distances of hidden
//! states ([`HiddenLoss`]) are added to it.

use fathom_grad::DivergenceLoss;

use crate::hidden_loss::HiddenLoss;
use crate::micro_batch::MicroBatch;
use crate::objective::{Best, CrossEntropy, LabelMetrics, Objective, TeacherUse, WeightedLoss};

/// How a student learns.
#[derive(Clone, Debug, PartialEq)]
pub struct Distill {
    /// Kind of divergence: 0 is forward KL, 1 reverse, values between are generalised Jensen-Shannon.
    pub beta: f64,
    /// Divides the logits of both models.
    pub temperature: f64,
    /// Weight of the divergence; cross-entropy has the rest.
    pub ratio: f64,
    /// Uses only the teacher's best tokens, which the micro-batch has.
    pub best: Option<Best>,
    /// Hidden states to compare as well, with a teacher that runs in the step.
    pub hidden: Option<HiddenLoss>,
}

impl Objective for Distill {
    fn name(&self) -> &'static str {
        "distill"
    }

    /// Labels, weighted.
    fn count(&self, micro: &MicroBatch) -> f64 {
        CrossEntropy.count(micro)
    }

    fn terms(&self) -> Vec<WeightedLoss> {
        let divergence = DivergenceLoss { beta: self.beta as f32, temperature: self.temperature };
        vec![
            WeightedLoss { weight: 1.0 - self.ratio, ..WeightedLoss::cross_entropy() },
            WeightedLoss::new(self.ratio, divergence),
        ]
    }

    fn teacher(&self) -> Option<TeacherUse<'_>> {
        Some(TeacherUse { best: self.best, hidden: self.hidden.as_ref() })
    }

    fn measured(&self) -> LabelMetrics {
        LabelMetrics::Both
    }
}
