//! Seeded English-like text with known near-duplicates, for tests and benchmarks of deduplication.
//!
//! Documents come in families. The first member is original; every other is a copy with shuffled paragraphs, an exact
//! copy, or a copy with words replaced, dropped or doubled at its own rate. Every document is a pure function of its
//! number, so a corpus of any size needs no memory and may be read twice.

/// A corpus of near-duplicates.
#[derive(Clone, Debug)]
pub struct NearDuplicates {
    /// Seed; equal seeds give equal texts.
    pub seed: u64,
    /// Total number of documents.
    pub documents: u64,
    /// Members per family; 1 makes all documents different. The members of a family are far apart.
    pub copies: u64,
    /// Average words per document; lengths vary from half to one and a half times this. A word takes about 9 bytes
    /// with its space.
    pub words: usize,
    /// Largest share of words that a copy changes; each copy's share is this times the square of a uniform random
    /// number.
    pub edits: f64,
    vocabulary: Vec<String>,
}

const PARAGRAPH_WORDS: usize = 60;
const VOCABULARY: usize = 8192;

/// Steele, Lea and Flood's SplitMix64: adequate for text, one addition and three mixes per number.
#[derive(Clone)]
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in 0..n.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Shuffles `items` (Fisher and Yates).
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

fn seeded(parts: &[u64]) -> SplitMix {
    let mut random = SplitMix(0x5851_f42d_4c95_7f2d);
    for &part in parts {
        random = SplitMix(random.next() ^ part);
    }
    random
}

fn vocabulary(seed: u64) -> Vec<String> {
    const ONSETS: [&str; 16] =
        ["b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "th", "st", "tr", "w"];
    const VOWELS: [&str; 8] = ["a", "e", "i", "o", "u", "ea", "ou", "e"];
    const ENDS: [&str; 8] = ["", "n", "r", "s", "t", "nd", "l", ""];
    let mut random = seeded(&[seed, 1]);
    let mut of = |parts: &[&'static str]| parts[random.below(parts.len() as u64) as usize];
    (0..VOCABULARY)
        .map(|rank| {
            let syllables = 1 + usize::from(rank > 64) + usize::from(rank > 2048);
            (0..syllables).map(|_| [of(&ONSETS), of(&VOWELS), of(&ENDS)].concat()).collect()
        })
        .collect()
}

/// Transformation of the family's first text.
enum Change {
    None,
    Shuffled,
    Edited(f64),
}

impl NearDuplicates {
    /// Creates `documents` texts of about 460 words (4 KiB), in families of `copies`, with up to a fifth of the words
    /// changed.
    pub fn new(seed: u64, documents: u64, copies: u64) -> NearDuplicates {
        NearDuplicates { seed, documents, copies, words: 460, edits: 0.2, vocabulary: vocabulary(seed) }
    }

    /// Sets the average length in words and the largest share of changed words.
    pub fn shaped(self, words: usize, edits: f64) -> NearDuplicates {
        NearDuplicates { words, edits, ..self }
    }

    /// Family of a document.
    pub fn family(&self, number: u64) -> u64 {
        number % self.families()
    }

    fn families(&self) -> u64 {
        (self.documents / self.copies.max(1)).max(1)
    }

    /// Text of document `number`.
    pub fn text(&self, number: u64) -> String {
        let (family, member) = (number % self.families(), number / self.families());
        let mut random = seeded(&[self.seed, 2, family, member]);
        let change = match (member, random.below(10)) {
            (0, _) => Change::None,
            (_, 0) => Change::Shuffled,
            (_, 1) => Change::None,
            _ => Change::Edited(self.edits * random.unit().powi(2)),
        };
        let words = self.words.max(2) as u64;
        let length = (words / 2 + seeded(&[self.seed, 3, family]).below(words)) as usize;
        let mut paragraphs: Vec<usize> = (0..length.div_ceil(PARAGRAPH_WORDS)).collect();
        if matches!(change, Change::Shuffled) {
            random.shuffle(&mut paragraphs);
        }
        let mut text = String::with_capacity(length * 8);
        for paragraph in paragraphs {
            let words = (length - paragraph * PARAGRAPH_WORDS).min(PARAGRAPH_WORDS);
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            let mut base = seeded(&[self.seed, 4, family, paragraph as u64]);
            match change {
                Change::Edited(rate) => {
                    self.write_paragraph(words, &mut base, Some((&mut random, rate)), &mut text)
                }
                _ => self.write_paragraph(words, &mut base, None, &mut text),
            }
        }
        text
    }

    fn word(&self, bits: u64) -> &str {
        // Squaring makes low ranks frequent, as in natural word frequencies.
        let uniform = (bits & 0xffff_ffff) as f64 / (1u64 << 32) as f64;
        &self.vocabulary[(uniform * uniform * VOCABULARY as f64) as usize]
    }

    fn write_paragraph(
        &self,
        words: usize,
        base: &mut SplitMix,
        mut edits: Option<(&mut SplitMix, f64)>,
        text: &mut String,
    ) {
        let mut sentence_starts = true;
        for i in 0..words {
            let bits = base.next();
            let mut word = self.word(bits);
            let mut times = 1;
            if let Some((random, rate)) = &mut edits
                && random.unit() < *rate
            {
                match random.below(3) {
                    0 => word = self.word(random.next()),
                    1 => times = 2,
                    _ => times = 0,
                }
            }
            for _ in 0..times {
                if sentence_starts {
                    text.extend(word.chars().take(1).map(|c| c.to_ascii_uppercase()));
                    text.push_str(&word[1..]);
                    sentence_starts = false;
                } else {
                    text.push(' ');
                    text.push_str(word);
                }
            }
            if !sentence_starts && (bits >> 60 == 0 || i + 1 == words) {
                text.push_str(if i + 1 == words { "." } else { ". " });
                sentence_starts = true;
            }
        }
    }

    /// Iterates over all documents in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, String)> + '_ {
        (0..self.documents).map(|number| (number, self.text(number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_depend_on_seed_and_number_only() {
        let corpus = NearDuplicates::new(7, 40, 4);
        let all: Vec<String> = corpus.iter().map(|(_, text)| text).collect();
        assert_eq!(all[33], corpus.text(33));
        assert_ne!(all[0], NearDuplicates::new(8, 40, 4).text(0));
        let mean = all.iter().map(String::len).sum::<usize>() / all.len();
        assert!((2500..6500).contains(&mean), "{mean} bytes on average");
        assert!(all[0].contains("\n\n") && all[0].contains(". "));
    }

    #[test]
    fn families_share_words_and_others_do_not() {
        let corpus = NearDuplicates { edits: 0.05, ..NearDuplicates::new(7, 40, 4) };
        let lines = |number: u64| -> std::collections::BTreeSet<String> {
            corpus.text(number).split_inclusive(". ").map(str::to_string).collect()
        };
        let shared = |a: u64, b: u64| lines(a).intersection(&lines(b)).count();
        assert_eq!(corpus.family(3), corpus.family(13));
        assert!((1..4).any(|member| shared(3, 3 + 10 * member) > 5));
        assert_eq!(shared(3, 4), 0);
    }
}
