//! Evaluation of a given text: the loss of each token, and whether it is the most likely one.

use fathom_grad::Scope;
use fathom_tensor::SUM_CHUNK;

use crate::engine::Engine;
use crate::error::Error;

/// Scores of `ids[1..]`, each given all tokens before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// The negative natural log-probability.
    pub losses: Vec<f64>,
    /// True if no token is more likely; among equals, only the first counts.
    pub hits: Vec<bool>,
}

impl Engine<'_> {
    /// Scores a text in one pass; logits are computed for 128 tokens at a time.
    ///
    /// # Errors
    /// A text that is too long, ids outside the vocabulary, non-finite logits.
    pub fn answers(&mut self, ids: &[u32]) -> Result<Answers, Error> {
        self.check(ids, 0)?;
        let lead = self.lead();
        let (batch, _) = self.packed(&[ids.to_vec()], lead + ids.len());
        let hidden = self.packed_hidden(&batch);
        let batch = (&batch).into();
        let scope = Scope { device: self.device, params: self.params, batch, counters: &self.counters };
        let (head, mut answers) = (self.model.head(0.0), Answers::default());
        for start in (0..ids.len().saturating_sub(1)).step_by(SUM_CHUNK) {
            let end = (start + SUM_CHUNK).min(ids.len() - 1);
            let logits =
                self.device.to_f32(&head.logits(&scope, &hidden.view_rows(lead + start..lead + end)));
            let rows = logits.chunks(logits.len() / (end - start));
            for (row, id) in rows.zip(&ids[start + 1..=end]) {
                let (loss, hit) = judged(row, *id as usize);
                answers.losses.push(loss);
                answers.hits.push(hit);
            }
        }
        if answers.losses.iter().all(|loss| loss.is_finite()) {
            Ok(answers)
        } else {
            Err(Error::NotFinite { what: "a loss" })
        }
    }
}

/// The loss of a label from its logits, and whether it is the most likely.
fn judged(logits: &[f32], label: usize) -> (f64, bool) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let first = logits.iter().position(|logit| *logit == largest);
    (sum.ln() + f64::from(largest - logits[label]), first == Some(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_judged_by_its_probability() {
        let (loss, hit) = judged(&[0.0, 2.0f32.ln(), 0.0], 1);
        assert!(hit && (loss - 2f64.ln()).abs() < 1e-6, "{loss}");
        assert!(!judged(&[1.0, 1.0], 1).1 && judged(&[1.0, 1.0], 0).1);
    }
}
