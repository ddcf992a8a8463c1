//! Masked-language modelling (Devlin et al., arXiv 1810.04805): the cross-entropy of tokens that were replaced, at their
//! own places. The head runs over their rows only.

use fathom_tensor::SUM_CHUNK;

use crate::micro_batch::MicroBatch;
use crate::objective::{LabelMetrics, Objective};

/// The objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskedObjective {
    /// Share of the tokens that are chosen ([`super::MaskingRule`]).
    pub share: f64,
}

impl Objective for MaskedObjective {
    fn name(&self) -> &'static str {
        "mlm"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        micro.valid() as f64
    }

    /// Each document has at most one token more than its share.
    fn chosen(&self, tokens: usize, docs: usize) -> Option<usize> {
        let most = (self.share * tokens as f64).ceil() as usize + docs;
        Some(most.next_multiple_of(SUM_CHUNK).min(tokens))
    }

    fn measured(&self) -> LabelMetrics {
        LabelMetrics::Both
    }
}
