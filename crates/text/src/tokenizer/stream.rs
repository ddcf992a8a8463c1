//! Ids in, whole characters out: what a person watching a generation needs.

use super::Tokenizer;

/// U+FFFD in UTF-8, which the decoder writes for bytes that are not (yet) a character.
const REPLACEMENT: &str = "\u{FFFD}";

/// Ids held back at most. A character has four bytes, so a longer run of undecodable bytes is no character.
const MAX_PENDING: usize = 32;

/// Turns ids into text one at a time. The pieces joined equal [`Tokenizer::decode_text`] of all ids.
///
/// The decoder is applied to a short window that starts one settled token before the pending ones, because some
/// decoders treat the first token of a text differently (they drop its leading space).
#[derive(Debug)]
pub struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    window: Vec<u32>,
    /// How many ids at the start of the window are settled, and how many bytes of its text have been given out.
    settled: usize,
    given: usize,
}

impl<'t> Stream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, window: Vec::new(), settled: 0, given: 0 }
    }

    /// Adds an id; returns the text that became certain, if any. Never returns half a character.
    pub fn push(&mut self, id: u32) -> Option<String> {
        self.window.push(id);
        let text = self.tokenizer.decode_text(&self.window);
        let incomplete = text.ends_with(REPLACEMENT) && self.window.len() - self.settled < MAX_PENDING;
        let certain = if incomplete { text.len() - REPLACEMENT.len() } else { text.len() };
        let piece = self.take(&text, certain);
        if !incomplete {
            // The newest token is the context of the next; what it contributes has been given out.
            self.window.drain(..self.window.len() - 1);
            self.settled = 1;
            self.given = self.tokenizer.decode_text(&self.window).len();
        }
        piece
    }

    /// Ends the stream: returns what was held back, undecodable bytes as U+FFFD.
    pub fn finish(mut self) -> Option<String> {
        let text = self.tokenizer.decode_text(&self.window);
        let end = text.len();
        self.take(&text, end)
    }

    fn take(&mut self, text: &str, end: usize) -> Option<String> {
        let piece = text.get(self.given..end).filter(|piece| !piece.is_empty())?;
        self.given = end;
        Some(piece.to_owned())
    }
}
