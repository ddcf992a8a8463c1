//! Words of a text, found in one pass: positions, lengths, hashes, and the counts for the word filters.

use super::options::WordRule;
use super::segments::segments;
use super::table::hash_at;
use super::unicode::{count_chars, is_ascii_space, is_unspaced, wide_space};
use unicode_segmentation::UnicodeSegmentation;

const SPACE: u8 = 1;
const ALPHA: u8 = 2;
const HASH: u8 = 4;
const HIGH: u8 = 8;
const WIDE: u8 = 16;

const CLASS: [u8; 256] = {
    let mut class = [0u8; 256];
    let mut b = 0;
    while b < 256 {
        let byte = b as u8;
        class[b] = if is_ascii_space(byte) {
            SPACE
        } else if byte.is_ascii_alphabetic() {
            ALPHA
        } else if byte == b'#' {
            HASH
        } else if matches!(byte, 0xc2 | 0xe1 | 0xe2 | 0xe3) {
            HIGH | WIDE
        } else if byte >= 0x80 {
            HIGH
        } else {
            0
        };
        b += 1;
    }
    class
};

/// Words that denote an omission (Curator's list, without its entries of two words).
const ELLIPSES: [&str; 6] = ["...", "[...]", "…", "(...)", "[…]", "-»"];
/// Eight words that occur in English text (Gopher, Rae et al. 2021, A1.1).
pub(super) const COMMON: [&str; 8] = ["the", "be", "to", "of", "and", "that", "have", "with"];

/// Words of a text.
#[derive(Default)]
pub(crate) struct Words {
    /// Byte offsets of start and end.
    pub(crate) spans: Vec<(u32, u32)>,
    /// One hash per word.
    pub(crate) hashes: Vec<u64>,
    /// Number of characters in all preceding words; one more entry than words.
    pub(crate) chars: Vec<u32>,
    /// For each word the number of gaps between words up to it; empty if there is a gap between any two words.
    pub(crate) gaps: Vec<u32>,
    /// Number of characters in the longest word.
    pub(crate) longest: u32,
    /// Number of words with a letter.
    pub(crate) with_letter: u32,
    /// Number of words that are an ellipsis or mostly `#`.
    pub(crate) symbols: u32,
    /// Number of occurrences of [`COMMON`] words.
    pub(crate) common: u32,
}

impl Words {
    pub(crate) fn clear(&mut self) {
        self.spans.clear();
        self.hashes.clear();
        self.chars.clear();
        self.chars.push(0);
        self.gaps.clear();
        (self.longest, self.with_letter, self.symbols, self.common) = (0, 0, 0, 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Number of characters in all words.
    pub(crate) fn total_chars(&self) -> u32 {
        self.chars.last().copied().unwrap_or(0)
    }

    /// Finds the words of `text`, which must be shorter than 4 GiB.
    pub(crate) fn find(&mut self, text: &str, rule: WordRule) {
        self.clear();
        match rule {
            WordRule::Auto | WordRule::Spaces => self.between_spaces(text, Words::push),
            WordRule::Dictionary => {
                self.between_spaces(text, Words::push_unspaced);
                self.count_gaps();
            }
            WordRule::Unicode => {
                for (start, word) in text.unicode_word_indices() {
                    self.push(text, start, start + word.len(), flags_of(word));
                }
                self.count_gaps();
            }
        }
    }

    /// Adds a space-delimited word, segmenting it by dictionary if its script is written without spaces.
    fn push_unspaced(&mut self, text: &str, start: usize, end: usize, flags: u8) {
        if flags & HIGH == 0 || !text[start..end].chars().any(is_unspaced) {
            return self.push(text, start, end, flags);
        }
        segments(text, start, end, |from, to| self.push(text, from, to, flags_of(&text[from..to])));
    }

    fn count_gaps(&mut self) {
        let (mut gaps, mut behind) = (0, self.spans.first().map_or(0, |span| span.0));
        for &(start, end) in &self.spans {
            gaps += u32::from(start > behind);
            self.gaps.push(gaps);
            behind = end;
        }
    }

    /// Calls `each` with start, end and byte classes of every run without white space.
    #[inline(always)]
    fn between_spaces(&mut self, text: &str, each: impl Fn(&mut Words, &str, usize, usize, u8)) {
        let bytes = text.as_bytes();
        let mut at = 0;
        loop {
            while let Some(&b) = bytes.get(at) {
                let class = CLASS[b as usize];
                if class & SPACE != 0 {
                    at += 1;
                } else if class & WIDE != 0 && wide_space(&bytes[at..]) > 0 {
                    at += wide_space(&bytes[at..]);
                } else {
                    break;
                }
            }
            if at >= bytes.len() {
                return;
            }
            let start = at;
            let mut flags = 0;
            while let Some(&b) = bytes.get(at) {
                let class = CLASS[b as usize];
                if class & (SPACE | WIDE) != 0 && (class & SPACE != 0 || wide_space(&bytes[at..]) > 0) {
                    break;
                }
                flags |= class;
                at += 1;
            }
            each(self, text, start, at, flags);
        }
    }

    #[inline(always)]
    fn push(&mut self, text: &str, start: usize, end: usize, flags: u8) {
        let bytes = text.as_bytes();
        let high = flags & HIGH != 0;
        let chars = if high { count_chars(&bytes[start..end]) } else { end - start } as u32;
        self.spans.push((start as u32, end as u32));
        self.hashes.push(hash_at(bytes, start, end));
        self.chars.push(self.total_chars() + chars);
        self.longest = self.longest.max(chars);
        if flags & ALPHA != 0 {
            self.with_letter += 1;
            if end - start <= 4 && COMMON.iter().any(|w| w.as_bytes() == &bytes[start..end]) {
                self.common += 1;
            }
            if flags & HASH != 0 && mostly_hashes(&bytes[start..end], chars) {
                self.symbols += 1;
            }
            return;
        }
        let word = &text[start..end];
        if high && word.chars().any(char::is_alphabetic) {
            self.with_letter += 1;
        }
        let symbol = flags & HASH != 0 && mostly_hashes(word.as_bytes(), chars);
        if symbol || ELLIPSES.contains(&word) {
            self.symbols += 1;
        }
    }
}

/// Union of the classes of a word's bytes.
fn flags_of(word: &str) -> u8 {
    word.bytes().fold(0, |flags, b| flags | CLASS[b as usize])
}

/// Returns true if there are more than half as many runs of `#` as characters (Curator counts runs, not signs).
fn mostly_hashes(word: &[u8], chars: u32) -> bool {
    let mut runs = 0u32;
    let mut before = 0;
    for &b in word {
        runs += u32::from(b == b'#' && before != b'#');
        before = b;
    }
    2 * runs > chars
}
