//! Conversations as tokens: common row formats, the model's own chat template, and the selection of the model's
//! tokens as targets.
//!
//! A rendered text is final: it is encoded with special tokens recognized, and nothing is added. Target tokens are
//! located by position, never by token id: by the template's own `{% generation %}` marks; or, for a known template,
//! by inserted marks; or else as the difference between the texts rendered without and with an answer, if the former
//! is a prefix of the latter. If none of these applies, it is an error.

mod concat;
mod conversation;
pub(crate) mod engine;
mod follow;
mod items;
mod known;
pub(crate) mod loops;
pub(crate) mod numbers;
pub(crate) mod python;
mod scan;
mod spans;
mod strings;
mod template;
mod turns;
pub(crate) mod values;

use std::ops::Range;

pub use conversation::{Conversation, Keys, Message, Speaker};
pub use follow::Follow;
pub use template::{RenderedConversation, Shows, Template, template_source};
pub use turns::Turns;

use crate::Tokenizer;

/// A tokenized conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizedConversation {
    /// Rendered text.
    pub text: String,
    /// Token ids of the text.
    pub ids: Vec<u32>,
    /// Weight of each token as a target; 0 for context.
    pub weights: Vec<f32>,
    /// Byte ranges of the target parts of the text, in order.
    pub learned: Vec<Range<usize>>,
}

impl Template {
    /// Tokenizes a conversation and assigns target weights.
    ///
    /// # Errors
    /// A message if the template fails, turns cannot be distinguished, or no token is a target.
    pub fn lesson(
        &self,
        conversation: &Conversation,
        turns: Turns,
        tokenizer: &Tokenizer,
    ) -> Result<TokenizedConversation, String> {
        let (text, mut said) = spans::spans(self, conversation, turns)?;
        let (ids, ends) = tokenizer.encode_with_ends(&text).map_err(|error| error.to_string())?;
        let mut weights = vec![0.0; ids.len()];
        said.retain(|part| part.weight > 0.0 && !part.bytes.is_empty());
        for part in &said {
            // A token that overlaps a target part belongs to it, as in Transformers.
            let first = ends.partition_point(|end| *end <= part.bytes.start);
            let last = ends.partition_point(|end| *end < part.bytes.end);
            weights[first..(last + 1).min(ids.len())].fill(part.weight);
        }
        let learned = said.into_iter().map(|part| part.bytes).collect();
        Ok(TokenizedConversation { text, ids, weights, learned })
    }
}

#[cfg(test)]
mod tests;
