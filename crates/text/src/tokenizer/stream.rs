//! Incremental decoding of ids to whole characters, for displaying a generation.

use super::Tokenizer;

/// Written by the decoder for bytes that are not (yet) a character.
const REPLACEMENT: char = '\u{FFFD}';

/// Maximum number of ids held back. A character has at most four bytes, so a longer run of undecodable bytes is no
/// character.
const MAX_PENDING: usize = 32;

/// Decodes ids one at a time. The concatenated pieces equal [`Tokenizer::decode_text`] of all ids if their bytes are
/// whole characters.
///
/// The decoder is applied to a short window of settled ids followed by the pending ones, because word-level decoders
/// treat the first token of a text differently (they drop its leading space), and byte-level decoders garble a whole
/// run of bytes if one is missing.
#[derive(Debug)]
pub struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    window: Vec<u32>,
    /// Number of settled ids at the start of the window, and number of bytes of its text already returned.
    settled: usize,
    given: usize,
}

impl<'t> Stream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, before: &[u32]) -> Self {
        let mut stream = Self { tokenizer, window: before.to_vec(), settled: 0, given: 0 };
        stream.settle();
        stream
    }

    /// Adds an id and returns the text that became final, if any. Never returns half a character.
    pub fn push(&mut self, id: u32) -> Option<String> {
        self.window.push(id);
        let text = self.tokenizer.decode_text(&self.window);
        // Some decoders write one per byte of an incomplete character.
        let whole = text.trim_end_matches(REPLACEMENT).len();
        if whole < text.len() && self.window.len() - self.settled < MAX_PENDING {
            return self.take(&text, whole);
        }
        let piece = self.take(&text, text.len());
        self.settle();
        piece
    }

    /// Inserts text that does not come from an id, such as the spelling of a special token; returns it after any text
    /// held back.
    pub fn insert(&mut self, text: &str) -> String {
        let before = self.tokenizer.decode_text(&self.window);
        let mut piece = self.take(&before, before.len()).unwrap_or_default();
        self.settle();
        piece.push_str(text);
        piece
    }

    /// Ends the stream and returns any text held back, with undecodable bytes as U+FFFD.
    pub fn finish(mut self) -> Option<String> {
        let text = self.tokenizer.decode_text(&self.window);
        let end = text.len();
        self.take(&text, end)
    }

    /// Keeps the shortest suffix of ids that decodes to whole characters, as context for the next id.
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
