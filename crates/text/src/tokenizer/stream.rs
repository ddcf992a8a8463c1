//! Ids in, whole characters out: what a person watching a generation needs.

use super::Tokenizer;

/// The decoder writes it for bytes that are not (yet) a character.
const REPLACEMENT: char = '\u{FFFD}';

/// Ids held back at most. A character has four bytes, so a longer run of undecodable bytes is no character.
const MAX_PENDING: usize = 32;

/// Turns ids into text one at a time. The pieces joined equal [`Tokenizer::decode_text`] of all ids, if their bytes are whole
/// characters.
///
/// The decoder is applied to a short window of settled ids before the pending ones, because decoders of words treat the first
/// token of a text differently (they drop its leading space), and decoders of bytes spoil a whole run of them for one that is
/// missing.
#[derive(Debug)]
pub struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    window: Vec<u32>,
    /// How many ids at the start of the window are settled, and how many bytes of its text have been given out.
    settled: usize,
    given: usize,
}

impl<'t> Stream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, before: &[u32]) -> Self {
        let mut stream = Self { tokenizer, window: before.to_vec(), settled: 0, given: 0 };
        stream.settle();
        stream
    }

    /// Adds an id; returns the text that became certain, if any. Never returns half a character.
    pub fn push(&mut self, id: u32) -> Option<String> {
        self.window.push(id);
        let text = self.tokenizer.decode_text(&self.window);
        // Some decoders write one for each byte of half a character.
        let whole = text.trim_end_matches(REPLACEMENT).len();
        if whole < text.len() && self.window.len() - self.settled < MAX_PENDING {
            return self.take(&text, whole);
        }
        let piece = self.take(&text, text.len());
        self.settle();
        piece
    }

    /// Adds a text that no id of the stream stands for, such as the spelling of a special token: returns what was held back, and it.
    pub fn insert(&mut self, text: &str) -> String {
        let before = self.tokenizer.decode_text(&self.window);
        let mut piece = self.take(&before, before.len()).unwrap_or_default();
        self.settle();
        piece.push_str(text);
        piece
    }

    /// Ends the stream: returns what was held back, undecodable bytes as U+FFFD.
    pub fn finish(mut self) -> Option<String> {
        let text = self.tokenizer.decode_text(&self.window);
        let end = text.len();
        self.take(&text, end)
    }

    /// Keeps, as the context of the next id, the fewest ids that have a text of whole characters.
    fn settle(&mut self) {
        let most = self.window.len().saturating_sub(MAX_PENDING);
        let has_text = |start: &usize| {
            let text = self.tokenizer.decode_text(&self.window[*start..]);
            !text.is_empty() && !text.contains(REPLACEMENT)
        };
        let start = (most..self.window.len()).rev().find(has_text).unwrap_or(most);
        self.window.drain(..start);
        self.settled = self.window.len();
        self.given = self.tokenizer.decode_text(&self.window).len();
    }

    fn take(&mut self, text: &str, end: usize) -> Option<String> {
        let piece = text.get(self.given..end).filter(|piece| !piece.is_empty())?;
        self.given = end;
        Some(piece.to_owned())
    }
}
