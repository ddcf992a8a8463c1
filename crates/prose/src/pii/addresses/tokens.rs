//! Words of an address, and the separators between them.

use super::words;

/// Maximum number of words of an address after its number.
const MOST_TOKENS: usize = 24;

/// Separator before a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    Space,
    Comma,
    Line,
}

/// A word of an address with its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    /// Text without the following dot.
    pub(super) text: &'a str,
    /// End offset of the text, before its dot.
    pub(super) end: usize,
    /// Separator before it.
    pub(super) gap: Gap,
    /// True if a dot follows.
    pub(super) dot: bool,
}

impl Token<'_> {
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(char::is_uppercase) && !self.text.contains(|c: char| c.is_ascii_digit())
    }
    pub(super) fn has_digit(&self) -> bool {
        self.text.contains(|c: char| c.is_ascii_digit())
    }
    /// Returns true for a number combined with something else: "5th", "1/2".
    pub(super) fn is_ordinal(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_digit())
            && self.text.contains(|c: char| !c.is_ascii_digit())
    }
    pub(super) fn is_abbreviation(&self) -> bool {
        self.text.len() <= 5
    }
    /// End of an address whose last token this is: after its dot if that marks an abbreviation and the sentence
    /// continues.
    pub(super) fn end_in(&self, text: &str) -> usize {
        let kind = words::is_kind(self.text) || words::is_after_kind(self.text);
        let after = text[self.end..].strip_prefix('.').unwrap_or_default().trim_start_matches(' ');
        let goes_on = after.starts_with(|c: char| c.is_lowercase() || matches!(c, ',' | ';' | ')'));
        self.end + usize::from(kind && self.is_abbreviation() && goes_on)
    }
}

/// Words after `from` that may belong to an address.
pub(super) fn tokens(text: &str, from: usize) -> Vec<Token<'_>> {
    let (mut out, mut at) = (Vec::with_capacity(8), from);
    while let Some(token) = (out.len() < MOST_TOKENS).then(|| token(text, at)).flatten() {
        let fits = token.text.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit() || c == '#')
            || words::is_connector(token.text)
            || token.text.strip_prefix('d').is_some_and(|rest| rest.starts_with(['\'', '’']));
        let stopped = out.last().is_some_and(|last: &Token| last.dot && !last.is_abbreviation());
        if !fits || stopped {
            break;
        }
        at = token.end + usize::from(token.dot);
        out.push(token);
    }
    out
}

/// Word at `at`, after a space, a comma or a line end.
fn token(text: &str, at: usize) -> Option<Token<'_>> {
    let (mut gap, mut start) = (None, at);
    for c in text[at..].chars() {
        gap = match (c, gap) {
            (' ' | '\t' | '\u{a0}' | '\r', gap) => gap.or(Some(Gap::Space)),
            (',', None | Some(Gap::Space)) => Some(Gap::Comma),
            ('\n', None | Some(Gap::Space | Gap::Comma)) => Some(Gap::Line),
            (',' | '\n', _) => return None,
            // "Ave-Suite 12": the hyphen acts as a space here.
            ('-', None) if start == at => Some(Gap::Space),
            _ => break,
        };
        start += c.len_utf8();
    }
    let rest = &text[start..];
    let mut end = start;
    for (offset, c) in rest.char_indices() {
        let next = rest[offset + c.len_utf8()..].chars().next();
        let inner = match c {
            '\'' | '’' | '/' | '.' => offset > 0 && next.is_some_and(char::is_alphanumeric),
            '-' => {
                offset > 0 && next.is_some_and(char::is_alphanumeric) && !unit_follows(&rest[offset + 1..])
            }
            '#' => offset == 0,
            '&' => true,
            c => c.is_alphanumeric(),
        };
        if !inner || offset > 40 {
            break;
        }
        end = start + offset + c.len_utf8();
    }
    let dot = text[end..].starts_with('.');
    let token = Token { text: &text[start..end], end, gap: gap?, dot };
    (end > start && !text[end..].starts_with(['@', '_', '='])).then_some(token)
}

/// Returns true if a part of a building follows: "Suite 12".
fn unit_follows(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    words::is_unit(word)
}
