//! Character counts by kind over a whole text.

use super::unicode::{count, count_chars};
use memchr::memmem;

/// Counts for one text, in characters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CharFacts {
    pub(crate) chars: u32,
    /// `[a-zA-Z0-9\n?!,.]`
    pub(crate) alphanumeric: u32,
    pub(crate) digits: u32,
    /// Tab, newline, carriage return, backspace and space.
    pub(crate) white: u32,
    /// Brackets, including mathematical angle brackets.
    pub(crate) brackets: u32,
}

impl CharFacts {
    /// Counts the characters of `text`, which must be shorter than 4 GiB.
    pub(crate) fn of(text: &str) -> CharFacts {
        let bytes = text.as_bytes();
        let chars = count_chars(bytes);
        let plain = |b: u8| {
            (b | 0x20).wrapping_sub(b'a') < 26
                || b.wrapping_sub(b'0') < 10
                || (b == b'\n') | (b == b'?') | (b == b'!') | (b == b',') | (b == b'.')
        };
        let bracket =
            |b: u8| (b == b'(') | (b == b')') | (b == b'[') | (b == b']') | (b == b'{') | (b == b'}');
        let mut brackets = count(bytes, bracket);
        if chars < bytes.len() {
            brackets += memmem::find_iter(bytes, "⟨").count() + memmem::find_iter(bytes, "⟩").count();
        }
        CharFacts {
            chars: chars as u32,
            alphanumeric: count(bytes, plain) as u32,
            digits: count(bytes, |b| b.wrapping_sub(b'0') < 10) as u32,
            white: count(bytes, |b| (b == b' ') | (b == b'\n') | (b == b'\t') | (b == b'\r') | (b == 8))
                as u32,
            brackets: brackets as u32,
        }
    }
}
