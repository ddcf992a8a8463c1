//! Generation of answers for training on rewards.

use std::rc::Rc;

use fathom_engine::Writer;
use fathom_text::Tokenizer;

/// Tokens of prompts and answers per forward pass.
const CHUNK_TOKENS: usize = 1024;

/// Makes a writer that uses an engine over the trainer's weights, for up to `sequences` at once; 0 for all.
pub(crate) fn writer(tokenizer: Rc<Tokenizer>, sequences: usize) -> Writer {
    Writer { tokenizer, chunk_tokens: CHUNK_TOKENS, sequences }
}
