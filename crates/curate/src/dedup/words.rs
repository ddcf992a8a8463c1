//! Normalized words for shingles: lower case, without accents, punctuation and white space; each run of digits is one
//! `0` (datatrove's MinHash normalization). A word is a maximal run of letters and digits.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Normal form of an ASCII byte: itself in lower case, `0` for any digit, or zero outside words.
const ASCII: [u8; 128] = {
    let mut table = [0u8; 128];
    let mut byte = 0usize;
    while byte < 128 {
        let b = byte as u8;
        table[byte] = match b {
            b'0'..=b'9' => b'0',
            b'a'..=b'z' => b,
            b'A'..=b'Z' => b + 32,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// Rolling hashes of windows of words.
#[derive(Default)]
pub(super) struct Words {
    /// Ring buffer of the hashes of the last words.
    recent: Vec<u64>,
}

/// A word being hashed.
#[derive(Clone, Copy)]
struct Word {
    hash: u64,
    bytes: u32,
    in_digits: bool,
}

const EMPTY: Word = Word { hash: 0x243f_6a88_85a3_08d3, bytes: 0, in_digits: false };

impl Word {
    #[inline(always)]
    fn push(&mut self, value: u32) {
        let digit = value == u32::from(b'0');
        if digit && self.in_digits {
            return;
        }
        self.in_digits = digit;
        self.hash = (self.hash ^ u64::from(value)).wrapping_mul(MULTIPLIER);
        self.bytes += 1;
    }

    fn push_wide(&mut self, c: char) {
        for lower in c.to_lowercase().nfd().filter(|&c| !is_combining_mark(c)) {
            let plain = if lower.is_numeric() { '0' } else { lower };
            self.push(plain as u32);
        }
    }
}

impl Words {
    /// Calls `take` with a 64-bit hash of each window of `width` words of `text`.
    #[inline(always)]
    pub(super) fn shingles(&mut self, text: &str, width: usize, seed: u32, mut take: impl FnMut(u64)) {
        let width = width.max(1);
        self.recent.clear();
        self.recent.resize(width, 0);
        let mut count = 0usize;
        let recent = &mut self.recent;
        each_word(text, |word| {
            recent[count % width] = word;
            count += 1;
            if count >= width {
                take(combine(recent, count % width, seed));
            }
        });
        if count > 0 && count < width {
            take(combine(&recent[..count], 0, seed));
        }
    }
}

/// Combined hash of the words in a ring, the oldest of which is at `first`.
#[inline(always)]
fn combine(ring: &[u64], first: usize, seed: u32) -> u64 {
    let mix = |hash: u64, &word: &u64| (hash.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER);
    let hash = ring[first..].iter().fold(u64::from(seed), mix);
    let hash = ring[..first].iter().fold(hash, mix);
    let hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash ^ (hash >> 32)
}

/// Calls `take` with the hash of each word.
#[inline(always)]
pub(super) fn each_word(text: &str, mut take: impl FnMut(u64)) {
    let bytes = text.as_bytes();
    let mut word = EMPTY;
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if byte < 128 {
            at += 1;
            let plain = ASCII[usize::from(byte)];
            if plain != 0 {
                word.push(u32::from(plain));
            } else if word.bytes > 0 {
                take(word.hash);
                word = EMPTY;
            }
            continue;
        }
        // A non-ASCII byte at a boundary begins a character, so this cannot fail.
        let Some(c) = text[at..].chars().next() else { break };
        at += c.len_utf8();
        if c.is_alphanumeric() || is_combining_mark(c) {
            word.push_wide(c);
        } else if word.bytes > 0 {
            take(word.hash);
            word = EMPTY;
        }
    }
    if word.bytes > 0 {
        take(word.hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<u64> {
        let mut all = Vec::new();
        each_word(text, |word| all.push(word));
        all
    }

    #[test]
    fn writing_does_not_matter() {
        assert_eq!(words("Hello,  WORLD 1984!"), words("hello world\n7"));
        assert_eq!(words("café Ünïcode"), words("cafe unicode"));
        assert_eq!(words("cafe\u{301}"), words("cafe"));
        assert_eq!(words("one-two"), words("one two"));
        assert_ne!(words("one two"), words("onetwo"));
        assert!(words(" .,;  — ").is_empty());
    }

    #[test]
    fn windows_slide_by_one_word() {
        let shingles = |text: &str, width| {
            let mut all = Vec::new();
            Words::default().shingles(text, width, 1, |hash| all.push(hash));
            all
        };
        assert_eq!(shingles("a b c d e f g", 5).len(), 3);
        assert_eq!(shingles("a b c d e f g", 5)[2], shingles("c d e f g", 5)[0]);
        assert_eq!(shingles("a b", 5).len(), 1);
        assert_ne!(shingles("a b", 5), shingles("b a", 5));
        assert!(shingles("", 5).is_empty());
    }
}
