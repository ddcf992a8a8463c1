//! The objective of a decoder that reads neighbours of its text (RETRO): the cross-entropy of the next token, with a second
//! stream, of neighbours.
//!
//! Both streams are filled up to sizes that depend on the stage alone, so that a plan has them too.

mod measure;
mod rule;

use fathom_model::Retrieval;
use fathom_tensor::SUM_CHUNK;

use crate::micro_batch::MicroBatch;
use crate::objective::Objective;

pub use measure::{HeldOutLosses, held_out_losses};
pub use rule::{Database, RetrievalRule};

/// The objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retro {
    /// Sizes of the model.
    pub sizes: Retrieval,
}

impl Objective for Retro {
    fn name(&self) -> &'static str {
        "retro"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        micro.valid() as f64
    }

    fn streams(&self, tokens: usize, _docs: usize) -> Option<[usize; 2]> {
        Some([self.sizes.source(tokens).next_multiple_of(SUM_CHUNK), tokens])
    }

    fn retrieval(&self) -> Option<Retrieval> {
        Some(self.sizes)
    }
}
