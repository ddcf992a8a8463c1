//! Conversations as tokens: rows of the field's formats, the model's own chat template, and which tokens of the text are the model's.
//!
//! A template's text is final: it is encoded with special tokens recognised and nothing is added. What is learned is found by position,
//! never by a token's id: by the template's own `{% generation %}` marks; or by marks of ours, if the template is a known one; or else
//! as the difference between the text up to an answer and the text with it, if the first is the second's beginning. Where none of these
//! holds, it is an error.

mod concat;
mod conversation;
mod follow;
mod known;
mod loops;
mod python;
mod spans;
mod template;
mod values;

use std::ops::Range;

use crate::Tokenizer;

pub use conversation::{Conversation, Keys, Message, Said};
pub use follow::Follow;
pub use template::{Rendered, Shows, Template, template_source};

/// A conversation as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spoken {
    /// What the template makes of it.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Weight of each token as a target; 0: context.
    pub weights: Vec<f32>,
    /// Where the learned parts of the text are, in bytes, in their order.
    pub learned: Vec<Range<usize>>,
}

/// Which of the model's turns are learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turns {
    /// All.
    #[default]
    Assistant,
    /// The last one alone.
    Last,
    /// Everything, whoever says it.
    All,
}

impl Template {
    /// The tokens of a conversation, and which of them are learned.
    ///
    /// # Errors
    /// In words: what the template refuses, what it makes of turns that cannot be distinguished, no learned token.
    pub fn lesson(
        &self,
        conversation: &Conversation,
        turns: Turns,
        tokenizer: &Tokenizer,
    ) -> Result<Spoken, String> {
        let (text, mut said) = spans::spans(self, conversation, turns)?;
        let (ids, ends) = tokenizer.encode_with_ends(&text).map_err(|error| error.to_string())?;
        let mut weights = vec![0.0; ids.len()];
        said.retain(|part| part.weight > 0.0 && !part.bytes.is_empty());
        for part in &said {
            // A token that a part begins or ends in is part of it, as Transformers has it.
            let first = ends.partition_point(|end| *end <= part.bytes.start);
            let last = ends.partition_point(|end| *end < part.bytes.end);
            weights[first..(last + 1).min(ids.len())].fill(part.weight);
        }
        let learned = said.into_iter().map(|part| part.bytes).collect();
        Ok(Spoken { text, ids, weights, learned })
    }
}

#[cfg(test)]
mod tests;
