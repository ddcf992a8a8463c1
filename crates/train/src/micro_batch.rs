//! Tokens on the host, as a source passes them to a step.

use std::ops::Range;
use std::sync::Arc;

use fathom_model::Retrieval;
use fathom_text::pack::{Facts, Span};

/// A packed stream of tokens on the host, with their targets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Token ids.
    pub ids: Vec<i32>,
    /// The next token; negative if it is not trained on.
    pub labels: Vec<i32>,
    /// Position of each token.
    pub positions: Vec<i32>,
    /// Ranges that attend only among themselves; they cover the stream.
    pub docs: Vec<Range<usize>>,
    /// The stream of a model's source, with as many documents, in the same order.
    pub source: Option<SourceTokens>,
    /// If the source reads neighbours, the token at which the chunk of each of its first documents begins; the others fill
    /// up, and there may be any number of them.
    pub chunks: Vec<usize>,
    /// Places of the first documents in their store.
    pub spans: Vec<Span>,
    /// Weight of each label's loss; empty: all 1.
    pub weights: Vec<f32>,
    /// Log-probability of each label under another model; empty: unknown.
    pub reference: Vec<f32>,
    /// A teacher's best tokens for each label, id and log-probability alternating; empty: unknown.
    pub best: Vec<f32>,
    /// Facts about the first documents; a range that pads the stream has none.
    pub facts: Facts,
    /// Number of its first sample, unique in a run; used for random numbers.
    pub number: u64,
    /// Number of the first sample of its step.
    pub began: u64,
    /// Totals over all micro-batches of the step; `None` means this one alone.
    pub step: Option<StepTotals>,
    /// Losses of its rows among all of the step, and their gradients by its documents' vectors.
    pub compared: Option<Arc<ContrastLosses>>,
    /// Columns for labels that a policy wrote.
    pub rolled: RolloutColumns,
}

/// A packed stream of tokens on the host, without targets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceTokens {
    /// Token ids.
    pub ids: Vec<i32>,
    /// Position of each token.
    pub positions: Vec<i32>,
    /// Ranges that cover the stream.
    pub docs: Vec<Range<usize>>,
}

/// Totals over the micro-batches of a step and all ranks, for means over the whole step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTotals {
    /// Number of documents with facts.
    pub documents: f64,
    /// Number of labels in the first document of each two: the chosen answers of pairs.
    pub labels: f64,
    /// A sum and its divisor, which the objective collects from all micro-batches before it weighs any
    /// ([`crate::Weigh::ahead`]).
    pub ahead: Option<[f64; 2]>,
}

/// A rollout's columns, one entry per token of the stream; empty: unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutColumns {
    /// Number of answers, which are the first documents; skipped answers have no labels.
    pub answers: usize,
    /// Log-probability of each label when it was sampled, or before the rollout's first step, under the distribution
    /// that it was sampled from.
    pub logps: Vec<f32>,
    /// Bit masks of the tokens that each label was sampled from ([`fathom_tensor::choice::Choose::kept`]),
    /// concatenated.
    pub kept: Vec<u8>,
    /// Advantage of each label.
    pub advantages: Vec<f32>,
    /// Prediction of the value head for each label, before it was written.
    pub values: Vec<f32>,
    /// Target of the value head.
    pub returns: Vec<f32>,
    /// No step on the rollout was taken yet, and log-probabilities are the sampler's: the difference between sampler
    /// and trainer is measured.
    pub fresh: bool,
}

/// Losses of a step's rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContrastLosses {
    /// The loss of each row.
    pub losses: Vec<f64>,
    /// Whether its positive comes first.
    pub hits: Vec<bool>,
    /// Derivative of the losses' sum by each number of each vector.
    pub gradient: Vec<f32>,
}

impl ContrastLosses {
    /// The part of some documents, of which `group` make a row.
    pub(crate) fn part(&self, docs: Range<usize>, (group, columns): (usize, usize)) -> ContrastLosses {
        let rows = docs.start / group..docs.end / group;
        ContrastLosses {
            losses: self.losses[rows.clone()].to_vec(),
            hits: self.hits[rows].to_vec(),
            gradient: self.gradient[docs.start * columns..docs.end * columns].to_vec(),
        }
    }
}

impl MicroBatch {
    /// Number of tokens of all streams.
    pub fn tokens(&self) -> usize {
        self.ids.len() + self.source.as_ref().map_or(0, |source| source.ids.len())
    }

    /// Number of tokens that are trained on.
    pub fn valid(&self) -> u64 {
        self.labels.iter().filter(|label| **label >= 0).count() as u64
    }

    /// Totals of this micro-batch alone.
    pub fn totals(&self) -> StepTotals {
        let firsts = self.docs[..self.facts.documents().min(self.docs.len())].iter().step_by(2);
        let labels =
            |doc: &Range<usize>| self.labels[doc.clone()].iter().filter(|label| **label >= 0).count();
        let labels: usize = firsts.map(labels).sum();
        StepTotals { documents: self.facts.documents() as f64, labels: labels as f64, ahead: None }
    }

    /// The document of each token, as an index of [`MicroBatch::docs`].
    pub fn doc_of(&self) -> Vec<i32> {
        let mut of = vec![-1; self.ids.len()];
        for (index, doc) in self.docs.iter().enumerate() {
            of[doc.clone()].fill(index as i32);
        }
        of
    }

    /// A micro-batch of `tokens` tokens in documents of `document` tokens, without contents (all positions are 0), for
    /// a machine without data.
    pub fn shape(tokens: usize, document: usize) -> MicroBatch {
        let document = document.max(1);
        let docs = (0..tokens).step_by(document).map(|start| start..tokens.min(start + document)).collect();
        let zeros = || vec![0; tokens];
        MicroBatch { ids: zeros(), labels: zeros(), positions: zeros(), docs, ..MicroBatch::default() }
    }

    /// The same of a source and a main stream, each in `docs` documents of even lengths.
    pub fn shape_of_two([source, main]: [usize; 2], docs: usize) -> MicroBatch {
        let cut =
            |tokens: usize| (0..docs).map(|doc| doc * tokens / docs..(doc + 1) * tokens / docs).collect();
        let zeros = || vec![0; source];
        let source = SourceTokens { ids: zeros(), positions: zeros(), docs: cut(source) };
        MicroBatch { docs: cut(main), source: Some(source), ..MicroBatch::shape(main, main) }
    }

    /// [`MicroBatch::shape`] with all neighbours that its chunks may have, in a source of `source` tokens.
    pub fn shape_of_chunks(source: usize, tokens: usize, document: usize, sizes: Retrieval) -> MicroBatch {
        let shape = MicroBatch::shape(tokens, document);
        let whole = |doc: &Range<usize>| {
            (doc.start..doc.end + 1 - sizes.chunk.min(doc.len() + 1)).step_by(sizes.chunk)
        };
        let chunks =
            shape.docs.iter().flat_map(whole).flat_map(|start| vec![start; sizes.neighbours]).collect();
        let MicroBatch { ids, positions, docs, .. } = MicroBatch::shape(source, sizes.neighbour());
        MicroBatch { source: Some(SourceTokens { ids, positions, docs }), chunks, ..shape }
    }
}
