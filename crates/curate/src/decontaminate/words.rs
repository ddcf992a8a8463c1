//! Normalized words for decontamination: lower case, without ASCII punctuation, separated by white space.

use std::ops::Range;

use twox_hash::XxHash3_64;

/// Base of the rolling hash; odd, so that no power of it vanishes.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;

/// The words of a text.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The words, separated by single spaces.
    normal: String,
    /// Range of each word in `normal`, and in the text from its first to its last non-punctuation character.
    places: Vec<(Range<usize>, Range<usize>)>,
    /// `prefix[i]` is a polynomial in [`BASE`] over the hashes of the words before `i`.
    prefix: Vec<u64>,
}

impl Words {
    pub(super) fn of(text: &str) -> Self {
        let mut words = Words { prefix: vec![0], ..Words::default() };
        let mut spelling = String::new();
        for raw in text.split_whitespace() {
            let counts = |c: char| !c.is_ascii_punctuation();
            let (Some(first), Some(last)) = (raw.find(counts), raw.rfind(counts)) else { continue };
            let last = last + raw[last..].chars().next().map_or(1, char::len_utf8);
            spelling.clear();
            spelling.extend(raw[first..last].chars().filter(|&c| counts(c)));
            if !words.normal.is_empty() {
                words.normal.push(' ');
            }
            let start = words.normal.len();
            if spelling.is_ascii() {
                spelling.make_ascii_lowercase();
                words.normal.push_str(&spelling);
            } else {
                words.normal.push_str(&spelling.to_lowercase());
            }
            // `raw` is a part of `text`, so its place is the difference of their addresses.
            let at = raw.as_ptr() as usize - text.as_ptr() as usize;
            words.places.push((start..words.normal.len(), at + first..at + last));
            let hash = XxHash3_64::oneshot(&words.normal.as_bytes()[start..]);
            let before = words.prefix[words.prefix.len() - 1];
            words.prefix.push(before.wrapping_mul(BASE).wrapping_add(hash));
        }
        words
    }

    /// Number of words.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// `count` normalized words from `first`.
    pub(super) fn gram(&self, first: usize, count: usize) -> &str {
        &self.normal[self.places[first].0.start..self.places[first + count - 1].0.end]
    }

    /// Hash of `count` words from `first`; `power` must be [`power`] of `count`.
    #[inline]
    pub(super) fn hash(&self, first: usize, count: usize, power: u64) -> u64 {
        self.prefix[first + count].wrapping_sub(self.prefix[first].wrapping_mul(power))
    }

    /// Byte range in the text from the first to the last of these words.
    pub(super) fn place(&self, first: usize, count: usize) -> Range<usize> {
        self.places[first].1.start..self.places[first + count - 1].1.end
    }

    /// Index of the first word that begins at or after byte `from` of the text.
    pub(super) fn first_from(&self, from: usize) -> usize {
        self.places.partition_point(|(_, place)| place.start < from)
    }
}

/// Factor by which appending `count` words multiplies a hash.
pub(super) fn power(count: usize) -> u64 {
    (0..count).fold(1u64, |power, _| power.wrapping_mul(BASE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_lowered_and_bare() {
        let text = " It's (sometimes) RED -- well-known;\n\"Ärger\" ...x 3.14 ΟΔΟΣ";
        let words = Words::of(text);
        assert_eq!(words.gram(0, words.len()), "its sometimes red wellknown ärger x 314 οδος");
        assert_eq!(&text[words.place(1, 1)], "sometimes");
        assert_eq!(&text[words.place(4, 2)], "Ärger\" ...x");
        assert_eq!((words.first_from(0), words.first_from(2), words.first_from(text.len())), (0, 1, 8));
        assert_eq!(Words::of(" -- !").len(), 0);
    }

    #[test]
    fn equal_words_have_equal_hashes_wherever_they_stand() {
        let (one, two) = (Words::of("a b c d e"), Words::of("x b, C d y"));
        assert_eq!(one.hash(1, 3, power(3)), two.hash(1, 3, power(3)));
        assert_ne!(one.hash(0, 3, power(3)), two.hash(0, 3, power(3)));
    }
}
