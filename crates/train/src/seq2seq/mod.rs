//! Objectives of encoder-decoders: the cross-entropy of a target stream, of which each document belongs to one of the source
//! stream. Spans that were dropped from a text are restored ([`SpanSizes`]), or a prompt is answered.
//!
//! Both streams are filled up to sizes that depend on the stage alone, so that a plan has them too.

mod pairing;
mod spans;
mod streams;

use fathom_tensor::SUM_CHUNK;

use crate::micro_batch::MicroBatch;
use crate::objective::{LabelMetrics, Objective};

pub use pairing::PairingRule;
pub use spans::SpanSizes;

/// The objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seq2seq {
    /// Spans that the target restores; `None` if it answers a prompt.
    pub spans: Option<SpanSizes>,
}

impl Objective for Seq2seq {
    fn name(&self) -> &'static str {
        if self.spans.is_some() { "span_corruption" } else { "seq2seq" }
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        micro.valid() as f64
    }

    fn streams(&self, tokens: usize, docs: usize) -> Option<[usize; 2]> {
        let most = match self.spans {
            Some(spans) => spans.most(tokens, docs),
            // Any part of a text may be its prompt.
            None => [tokens + 2 * docs; 2],
        };
        // One token is left for a last document, which fills up.
        Some(most.map(|tokens| (tokens + 1).next_multiple_of(SUM_CHUNK)))
    }

    fn measured(&self) -> LabelMetrics {
        LabelMetrics::Both
    }
}
