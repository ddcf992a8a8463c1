//! Character classes used by the regular expressions of pre-tokenizers.
//!
//! The tables are built from `regex-syntax`, the crate behind the expressions themselves, so `\p{L}` has the same
//! meaning here, whatever the version of Unicode. A character is looked up in two steps, page and index within the
//! page, and most pages of Unicode are identical; the total is about 60 KiB.

use regex_syntax::hir::{Class, HirKind};
use std::sync::LazyLock;

/// `\p{L}`.
pub(super) const LETTER: u8 = 1;
/// `\p{N}`.
pub(super) const NUMBER: u8 = 2;
/// `\s`.
pub(super) const SPACE: u8 = 4;
/// `[^\s\p{L}\p{N}]`.
pub(super) const OTHER: u8 = 8;
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: characters that may begin a capitalized word.
pub(super) const UPPER: u8 = 16;
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: characters that may end a word.
pub(super) const LOWER: u8 = 32;
/// Rust's `char::is_numeric`, used by the pre-tokenizer `Digits`.
pub(super) const NUMERIC: u8 = 64;

const PATTERNS: [(u8, &str); 5] = [
    (LETTER, r"\p{L}"),
    (NUMBER, r"\p{N}"),
    (SPACE, r"\s"),
    (UPPER, r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"),
    (LOWER, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
];

const CHARS: usize = 0x11_0000;
const PAGE: usize = 256;

static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::fill);

/// Classes of ASCII, independent of Unicode tables; zero for other bytes.
pub(super) const ASCII: [u8; 256] = ascii();

const fn ascii() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        let c = byte as u8;
        classes[byte] = if c.is_ascii_uppercase() {
            LETTER | UPPER
        } else if c.is_ascii_lowercase() {
            LETTER | LOWER
        } else if c.is_ascii_digit() {
            NUMBER | NUMERIC
        } else if matches!(c, b'\t'..=b'\r' | b' ') {
            SPACE
        } else {
            OTHER
        };
        byte += 1;
    }
    classes
}

/// Classes of all characters.
#[derive(Debug)]
pub(super) struct Classes {
    page_of: Vec<u8>,
    pages: Vec<[u8; PAGE]>,
}

impl Classes {
    /// Returns the tables, building them at the first call.
    pub(super) fn get() -> &'static Self {
        &CLASSES
    }

    fn fill() -> Self {
        let mut all = vec![0u8; CHARS];
        for (bit, pattern) in PATTERNS {
            for (first, last) in ranges(pattern) {
                all[first as usize..=last as usize].iter_mut().for_each(|class| *class |= bit);
            }
        }
        for (number, class) in all.iter_mut().enumerate() {
            if *class & (SPACE | LETTER | NUMBER) == 0 {
                *class |= OTHER;
            }
            if char::from_u32(number as u32).is_some_and(char::is_numeric) {
                *class |= NUMERIC;
            }
        }
        let (mut page_of, mut pages) = (Vec::new(), Vec::<[u8; PAGE]>::new());
        for page in all.as_chunks::<PAGE>().0 {
            let known = pages.iter().position(|seen| seen == page).unwrap_or_else(|| {
                pages.push(*page);
                pages.len() - 1
            });
            assert!(known < 256, "the pages of Unicode differ in more than 256 ways");
            page_of.push(known as u8);
        }
        Self { page_of, pages }
    }

    /// Class and length of the character that begins at byte `at`. `text` is UTF-8 and `at` a character boundary in
    /// it.
    #[inline(always)]
    pub(super) fn at(&self, text: &[u8], at: usize) -> (u8, usize) {
        let first = text[at];
        if first < 0x80 { (ASCII[first as usize], 1) } else { self.beyond_ascii(text, at) }
    }

    #[inline(always)]
    fn beyond_ascii(&self, text: &[u8], at: usize) -> (u8, usize) {
        let first = u32::from(text[at]);
        let next = |by: usize| u32::from(text[at + by] & 0x3F);
        let (number, bytes) = if first < 0xE0 {
            ((first & 0x1F) << 6 | next(1), 2)
        } else if first < 0xF0 {
            ((first & 0x0F) << 12 | next(1) << 6 | next(2), 3)
        } else {
            ((first & 0x07) << 18 | next(1) << 12 | next(2) << 6 | next(3), 4)
        };
        let page = &self.pages[usize::from(self.page_of[(number >> 8) as usize])];
        (page[(number & 0xFF) as usize], bytes)
    }

    /// End of the run of characters of these classes that begins at `at`.
    #[inline(always)]
    pub(super) fn run(&self, text: &[u8], mut at: usize, classes: u8) -> usize {
        while at < text.len() {
            let (class, bytes) = self.at(text, at);
            if class & classes == 0 {
                break;
            }
            at += bytes;
        }
        at
    }

    /// End of the run of letters that begins at `at`: like [`Classes::run`], but eight bytes of ASCII at a time.
    #[inline(always)]
    pub(super) fn letters(&self, text: &[u8], mut at: usize) -> usize {
        loop {
            while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
                let letters = leading_ascii_letters(u64::from_le_bytes(*chunk));
                at += letters;
                if letters < 8 {
                    break;
                }
            }
            if at >= text.len() {
                return at;
            }
            let (class, bytes) = self.at(text, at);
            if class & LETTER == 0 {
                return at;
            }
            at += bytes;
            while at < text.len() && text[at] >= 0x80 {
                let (class, bytes) = self.beyond_ascii(text, at);
                if class & LETTER == 0 {
                    return at;
                }
                at += bytes;
            }
        }
    }
}

/// Number of leading ASCII letters among eight bytes, lowest byte first.
#[inline(always)]
fn leading_ascii_letters(bytes: u64) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    // Lower case and seven bits, so that no sum carries into the next byte.
    let low = (bytes | (0x20 * ONES)) & !HIGH;
    let from_a = low.wrapping_add((0x80 - b'a' as u64) * ONES);
    let past_z = low.wrapping_add((0x80 - b'z' as u64 - 1) * ONES);
    let others = !(from_a & !past_z & !bytes) & HIGH;
    (others.trailing_zeros() / 8) as usize
}

fn ranges(pattern: &str) -> Vec<(char, char)> {
    let parsed = regex_syntax::parse(pattern).unwrap_or_else(|error| panic!("class {pattern}: {error}"));
    match parsed.into_kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().map(|range| (range.start(), range.end())).collect()
        }
        other => panic!("{pattern} is no class of characters: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_has_the_class_of_the_expression() {
        let classes = Classes::get();
        for (bit, pattern) in PATTERNS {
            let inside = ranges(pattern);
            for c in '\0'..=char::MAX {
                let mut bytes = [0; 4];
                let text = c.encode_utf8(&mut bytes).as_bytes();
                let (class, length) = classes.at(text, 0);
                let wanted = inside.binary_search_by(|&(first, last)| {
                    if last < c { std::cmp::Ordering::Less } else { (first > c).cmp(&false) }
                });
                assert_eq!((class & bit != 0, length), (wanted.is_ok(), text.len()), "{pattern} {c:?}");
            }
        }
    }

    #[test]
    fn letters_are_counted_eight_at_a_time() {
        for c in 0..=255u8 {
            for place in 0..8 {
                let mut bytes = *b"azAZmMkK";
                bytes[place] = c;
                let wanted = bytes.iter().take_while(|b| b.is_ascii_alphabetic()).count();
                assert_eq!(leading_ascii_letters(u64::from_le_bytes(bytes)), wanted, "{bytes:?}");
            }
        }
    }
}
