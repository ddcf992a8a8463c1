//! The text of an answer as it grows.

use fathom_base::{Sampling, Stop};
use fathom_text::tokenizer::Stream;

use crate::stop::{Passed, StopFilter};

/// Converts ids to final text, up to the end of the answer.
pub(crate) struct Writer<'t> {
    stream: Stream<'t>,
    filter: StopFilter,
    /// Tokens that end the answer.
    ends: Vec<u32>,
    /// The end tokens named by the request that the model itself does not use.
    named: Vec<u32>,
    /// Special tokens that are part of the text, with their spellings.
    shown: Vec<(u32, String)>,
    min_tokens: usize,
    max_tokens: usize,
    tokens: usize,
}

/// Result of a token.
pub(crate) struct Written {
    /// Text that is now final; may be empty.
    pub text: String,
    /// True if the token is part of the answer.
    pub counts: bool,
    /// Set if the answer ends here.
    pub stop: Option<Stop>,
}

impl<'t> Writer<'t> {
    /// An answer that continues the stream's text and ends with the request's end tokens or with one of `ends`.
    pub fn new(stream: Stream<'t>, how: &Sampling, ends: &[u32]) -> Writer<'t> {
        let Sampling { min_tokens, max_tokens, .. } = *how;
        let named: Vec<u32> = how.stop_ids.iter().copied().filter(|id| !ends.contains(id)).collect();
        let ends = [&named, ends].concat();
        // Stop texts are not searched for within the first `min_tokens` tokens.
        let filter = StopFilter::new(&how.stop);
        Writer { stream, filter, ends, named, shown: Vec::new(), min_tokens, max_tokens, tokens: 0 }
    }

    /// Makes these special tokens part of the text.
    pub fn showing(self, shown: Vec<(u32, String)>) -> Writer<'t> {
        Writer { shown, ..self }
    }

    /// A writer for another answer from its beginning, which continues the text of `stream`.
    pub fn again(&self, stream: Stream<'t>) -> Writer<'t> {
        let Writer { min_tokens, max_tokens, .. } = *self;
        let (filter, ends, named) = (StopFilter::default(), self.ends.clone(), self.named.clone());
        let shown = self.shown.clone();
        Writer { stream, filter, ends, named, shown, min_tokens, max_tokens, tokens: 0 }
    }

    /// Takes the next token; an answer of no tokens ends before it.
    pub fn push(&mut self, id: u32) -> Written {
        if self.max_tokens == 0 {
            return Written { text: String::new(), counts: false, stop: Some(Stop::Length) };
        }
        if self.ends.contains(&id) && self.tokens >= self.min_tokens {
            let text = std::mem::take(&mut self.filter).finish();
            let stop = if self.named.contains(&id) { Stop::StopToken(id) } else { Stop::EndOfText };
            return Written { text, counts: false, stop: Some(stop) };
        }
        self.tokens += 1;
        let piece = match self.shown.iter().find(|(shown, _)| *shown == id) {
            Some((_, spelled)) => self.stream.insert(spelled),
            None => self.stream.push(id).unwrap_or_default(),
        };
        let early = self.tokens < self.min_tokens;
        let (mut text, stopped) = match if early { Passed::Text(piece) } else { self.filter.push(&piece) } {
            Passed::Text(text) => (text, None),
            Passed::Stopped(text, by) => (text, Some(by)),
        };
        let stop = match (stopped, self.tokens >= self.max_tokens) {
            (Some(by), _) => Some(Stop::StopText(by)),
            (None, true) => {
                text.push_str(&self.rest());
                Some(Stop::Length)
            }
            (None, false) => None,
        };
        Written { text, counts: true, stop }
    }

    /// Number of tokens that the answer may still have.
    pub fn left(&self) -> usize {
        self.max_tokens - self.tokens
    }

    /// Text that is still held back, if the answer ends for another reason than a stop text.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.filter).finish()
    }
}

#[cfg(test)]
mod tests {
    use fathom_text::Tokenizer;

    use super::*;

    #[test]
    fn special_tokens_are_spelled_where_they_are_shown_and_left_out_elsewhere() {
        let text = std::iter::once("a b".to_string());
        let tokenizer = Tokenizer::train_bpe(text, 270, &["<end>", "[ARGS]", "[X]"]).unwrap();
        let written = |shown: &[&str]| {
            let shown = shown.iter().map(|it| (tokenizer.token_id(it).unwrap(), it.to_string())).collect();
            let how = Sampling::default();
            let mut writer = Writer::new(tokenizer.stream(), &how, &[]).showing(shown);
            let ids = tokenizer.encode_special("a[ARGS]{}[X] \u{e9}[ARGS]b").unwrap();
            let text: String = ids.iter().map(|id| writer.push(*id).text).collect();
            text + &writer.rest()
        };
        assert_eq!(written(&[]), "a{} \u{e9}b");
        assert_eq!(written(&["[ARGS]"]), "a[ARGS]{} \u{e9}[ARGS]b");
        assert_eq!(written(&["[ARGS]", "[X]"]), "a[ARGS]{}[X] \u{e9}[ARGS]b");
    }
}
