//! Who writes the answers of a run that learns from rewards.

use std::rc::Rc;

use fathom_engine::Writer;
use fathom_text::Tokenizer;

/// Tokens of prompts and answers that are read at once.
const CHUNK_TOKENS: usize = 1024;

/// An engine over the trainer's weights, for so many sequences at once; 0: all.
pub(crate) fn writer(tokenizer: Rc<Tokenizer>, sequences: usize) -> Writer {
    Writer { tokenizer, chunk_tokens: CHUNK_TOKENS, sequences }
}
