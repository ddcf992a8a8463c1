//! Sizes of an engine, and room for sequences.

use fathom_model::Spec;
use fathom_tensor::{PAGE_ROWS, PageFormat};

/// Tokens between checkpoints of states within a prompt.
pub(crate) const CHECKPOINT_TOKENS: usize = 2048;

/// Sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum tokens of prompt and answer together.
    pub context_tokens: usize,
    /// Maximum tokens read per step: one for each answer, and the rest from prompts.
    pub chunk_tokens: usize,
    /// Maximum tokens per answer and step that are guessed from earlier repetitions; 0 disables guessing. Does not
    /// change answers.
    pub draft_tokens: usize,
    /// Format of keys and values. Quantized formats save memory and change answers a little.
    pub kv: PageFormat,
}

impl Limits {
    /// The limits of an engine over a model that answers this many sequences at once. Where layers have states, prompts are read
    /// by whole pages, so that no bit depends on other sequences, and a step has room for one page next to all answers.
    pub fn over(self, spec: &Spec, sequences: usize) -> Limits {
        if !spec.has_states() {
            return self;
        }
        let least = (sequences + PAGE_ROWS).max(self.chunk_tokens);
        Limits { chunk_tokens: least.next_multiple_of(PAGE_ROWS), ..self }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { context_tokens: 4096, chunk_tokens: 1024, draft_tokens: 0, kv: PageFormat::Plain }
    }
}

/// Capacity for concurrent sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of sequences.
    pub sequences: usize,
    /// Number of pages for each of the model's windows, in order.
    pub pages: Vec<usize>,
    /// Number of pages on disk for layers without a window, for sequences that do not fit into memory; separate from
    /// stored prefixes.
    pub on_disk: usize,
}
