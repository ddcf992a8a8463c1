//! Text embeddings from a decoder: its hidden states after the final norm, pooled as its folder specifies, or else
//! their mean over a text's tokens, normalised to length 1.
//!
//! The latter is mean pooling as in Sentence-BERT (Reimers and Gurevych 2019), applied to a decoder, whose tokens see
//! only those before them. Several texts run as separate documents of one packed stream.

use fathom_base::{Embed, Numbers, TextIds};

use crate::engine::Engine;
use crate::error::Error;
use crate::texts::{BYTES_PER_TOKEN, Reads, framed, plain, spoken};

impl Embed for Engine<'_> {
    /// Uses the first [`crate::Limits::context_tokens`] tokens of a text (fewer with learned positions). Spellings of
    /// special tokens are ordinary text, and a begin-of-text token is prepended if the tokenizer does so (a model whose
    /// folder specifies pooling uses its tokenizer's template). As many texts run together as fit into
    /// [`crate::Limits::chunk_tokens`], so memory is that of one chunk or one text. Length-dependent rotary settings
    /// see the limit, for every text the same.
    fn embed(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
        let texts = texts.iter().map(|text| self.beginning(text)).collect::<Result<Vec<_>, Error>>()?;
        Ok(self.all(&texts, Numbers::Vector)?)
    }

    fn size(&self) -> usize {
        let hidden = self.model.spec.hidden;
        self.sentence.as_ref().map_or(hidden, |how| how.size(hidden))
    }
}

impl Engine<'_> {
    /// The ids of a text that are used: at least one.
    fn beginning(&self, text: &str) -> Result<TextIds, Error> {
        let room = self.room();
        let end = text.floor_char_boundary(room.saturating_mul(BYTES_PER_TOKEN));
        let mut text: TextIds = match &self.sentence {
            Some(how) => framed(self.tokenizer, &spoken(how, &text[..end]), None, Some(room))?,
            None => plain(self.tokenizer, &text[..end])?.into(),
        };
        text.ids.truncate(room);
        self.check(&text.ids, 0)?;
        Ok(text)
    }
}
