//! What a request may ask, known without the engine: for the thread that brings it.

use fathom_base::{GenerateRequest, Prompt};
use fathom_tensor::PAGE_ROWS;
use fathom_text::Tokenizer;

use crate::engine::Limits;
use crate::error::Error;
use crate::pages::pages_for;
use crate::sampler;
use crate::schedule::Capacity;

/// Sizes of a model and its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Rows of the embedding.
    pub vocab: usize,
    /// Tokens that a sequence can have, besides virtual ones.
    pub room: usize,
    /// Virtual tokens of an adapter before every sequence.
    pub lead: usize,
    /// The model's windows.
    pub windows: Vec<Option<usize>>,
    /// Sizes of the engine.
    pub limits: Limits,
    /// What runs at once.
    pub capacity: Capacity,
}

impl Bounds {
    /// The ids of a prompt.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn ids(&self, tokenizer: &Tokenizer, prompt: &Prompt) -> Result<Vec<u32>, Error> {
        match prompt {
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Text(text) => {
                let ids = tokenizer.encode_prompt(text)?;
                Ok(if ids.is_empty() { tokenizer.bos().into_iter().collect() } else { ids })
            }
        }
    }

    /// # Errors
    /// What the request asks for is out of range, or longer than the context or the pages.
    pub fn check(&self, ids: &[u32], asked: &GenerateRequest) -> Result<(), Error> {
        let how = &asked.sampling;
        self.prompt(ids, how.max_tokens)?;
        sampler::check(how)?;
        if asked.answers == 0 {
            return Err(Error::Sampling { key: "answers", message: "must be at least 1".into() });
        }
        let tokens = self.lead + ids.len() + how.max_tokens;
        let needed = pages_for(&self.windows, 1, tokens, self.limits.chunk_tokens);
        if needed.iter().zip(&self.capacity.pages).any(|(needed, there)| needed > there) {
            let room = self.capacity.pages.iter().min().map_or(0, |pages| pages * PAGE_ROWS);
            return Err(Error::NoPages { tokens, room });
        }
        Ok(())
    }

    /// # Errors
    /// A prompt that is empty, has unknown ids, or leaves no room for `new` tokens.
    pub fn prompt(&self, ids: &[u32], new: usize) -> Result<(), Error> {
        let Bounds { vocab, room, .. } = *self;
        if ids.is_empty() {
            return Err(Error::Empty);
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::Vocabulary { id: *id, vocab });
        }
        if ids.len().saturating_add(new) > room {
            return Err(Error::TooLong { prompt: ids.len(), new, room });
        }
        Ok(())
    }
}
