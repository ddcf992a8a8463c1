//! Tokens on the host, as a source gives them to a step.

use std::ops::Range;

use fathom_text::pack::Facts;

/// A packed stream of tokens on the host, with the target of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Token ids.
    pub ids: Vec<i32>,
    /// The next token; below zero: not trained on.
    pub labels: Vec<i32>,
    /// Position of each token.
    pub positions: Vec<i32>,
    /// Ranges that attend among themselves only; they cover the stream.
    pub docs: Vec<Range<usize>>,
    /// Weight of each label's loss; empty: one each.
    pub weights: Vec<f32>,
    /// Log-probability of each label under another model; empty: unknown.
    pub reference: Vec<f32>,
    /// The best tokens that a teacher has for each label, id and log-probability in turn; empty: unknown.
    pub best: Vec<f32>,
    /// What is known of the first documents; a range that fills up has nothing.
    pub facts: Facts,
    /// Tells it from all others of a run, for random numbers: the number of its first sample.
    pub number: u64,
    /// The number of the first sample of its step.
    pub began: u64,
    /// What all micro batches of the step have together; `None` where it is this one alone.
    pub step: Option<Totals>,
    /// Of answers that a policy wrote: what is known of their labels.
    pub rolled: Rolled,
}

/// What the micro batches of a step have together, over all ranks, for means over the whole step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Documents of which something is known.
    pub documents: f64,
    /// Labels of the first document of each two: of pairs the chosen answers'.
    pub labels: f64,
    /// What the objective asks of all of them before it weighs any ([`crate::Weigh::ahead`]): a sum, and what it is divided by.
    pub ahead: Option<[f64; 2]>,
}

/// What a rollout says of its answers, label by label, in columns as long as the stream; empty: unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rolled {
    /// Answers, which are the first documents; those that were left out have no labels.
    pub answers: usize,
    /// Log-probability of each label when it was sampled, or before the rollout's first step, under the distribution that it was sampled
    /// from.
    pub logps: Vec<f32>,
    /// Of each label bits of the tokens that it was drawn among ([`fathom_tensor::choice::Choose::kept`]), one after the other.
    pub kept: Vec<u8>,
    /// Advantage of each label.
    pub advantages: Vec<f32>,
    /// What the value head said of each label before it was written.
    pub values: Vec<f32>,
    /// What it should have said.
    pub returns: Vec<f32>,
    /// No step of the rollout was made yet, and log-probabilities are the sampler's: how far it is from the trainer is measured.
    pub fresh: bool,
}

impl MicroBatch {
    /// Tokens that are trained on.
    pub fn valid(&self) -> u64 {
        self.labels.iter().filter(|label| **label >= 0).count() as u64
    }

    /// What it has by itself.
    pub fn totals(&self) -> Totals {
        let firsts = self.docs[..self.facts.documents().min(self.docs.len())].iter().step_by(2);
        let labels =
            |doc: &Range<usize>| self.labels[doc.clone()].iter().filter(|label| **label >= 0).count();
        let labels: usize = firsts.map(labels).sum();
        Totals { documents: self.facts.documents() as f64, labels: labels as f64, ahead: None }
    }

    /// The document of each token, as an index of [`MicroBatch::docs`].
    pub fn doc_of(&self) -> Vec<i32> {
        let mut of = vec![-1; self.ids.len()];
        for (index, doc) in self.docs.iter().enumerate() {
            of[doc.clone()].fill(index as i32);
        }
        of
    }

    /// The shape of `tokens` tokens in documents of `document` tokens, without contents (all positions are 0): for a
    /// machine without data.
    pub fn shape(tokens: usize, document: usize) -> MicroBatch {
        let document = document.max(1);
        let docs = (0..tokens).step_by(document).map(|start| start..tokens.min(start + document)).collect();
        let zeros = || vec![0; tokens];
        MicroBatch { ids: zeros(), labels: zeros(), positions: zeros(), docs, ..MicroBatch::default() }
    }
}
