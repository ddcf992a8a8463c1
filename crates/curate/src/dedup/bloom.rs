//! Repeated paragraphs by a Bloom filter of word n-grams, in one pass and with a fixed amount of memory (the method of
//! DCLM's Big Friendly Filter).
//!
//! A paragraph most of whose n-grams have been seen is dropped; the n-grams of what stays are remembered. Documents
//! are taken in order by one thread, so the same documents stay on every machine; hashing runs on all.

use std::borrow::Cow;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::dedup::words::each_word;
use crate::error::Error;

/// What is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BloomUnit {
    /// Paragraphs (lines that are not blank), each judged alone.
    Paragraph,
    /// Whole documents.
    Document,
    /// Paragraphs, and the whole document where the threshold is reached over all its n-grams.
    #[default]
    Both,
}

/// How repeated paragraphs are found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BloomOptions {
    /// Words in an n-gram; a paragraph of fewer words stays, and is not remembered. DCLM: 13.
    pub ngram: usize,
    /// Share of n-grams seen before from which a unit is dropped. DCLM: 0.8.
    pub threshold: f64,
    /// Wanted probability that an n-gram counts as seen though it was not. DCLM: 0.01.
    pub false_positive_rate: f64,
    /// N-grams that the filter is sized for: at most the words of the corpus, about its bytes over 6.
    pub expected_ngrams: u64,
    /// What is dropped.
    pub unit: BloomUnit,
}

impl Default for BloomOptions {
    fn default() -> BloomOptions {
        BloomOptions {
            ngram: 13,
            threshold: 0.8,
            false_positive_rate: 0.01,
            expected_ngrams: 100_000_000,
            unit: BloomUnit::Both,
        }
    }
}

impl BloomOptions {
    /// Bytes of the filter: `-n ln p / (ln 2)^2` bits (Bloom 1970) in whole words.
    pub fn bytes(&self) -> u64 {
        let bits =
            -(self.expected_ngrams as f64) * self.false_positive_rate.ln() / std::f64::consts::LN_2.powi(2);
        ((bits / 64.0).ceil() as u64).max(1).saturating_mul(8)
    }

    /// Bits set per n-gram: `log2(1 / p)`.
    fn probes(&self) -> u32 {
        (-self.false_positive_rate.log2()).round().clamp(1.0, 32.0) as u32
    }
}

/// N-grams seen so far. Holds [`BloomOptions::bytes`], whatever passes.
pub struct ParagraphFilter {
    options: BloomOptions,
    words: Vec<u64>,
    inserted: u64,
}

/// A document with its paragraphs and their n-grams, hashed on any thread.
struct Hashed {
    /// Where each paragraph ends in the text, its line end included, and in `ngrams`.
    paragraphs: Vec<(usize, usize)>,
    ngrams: Vec<u64>,
}

/// What became of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Paragraphs<'t> {
    /// It stays, without the paragraphs seen before.
    Keep(Cow<'t, str>),
    /// Nothing is left of it.
    Drop,
}

impl ParagraphFilter {
    /// An empty filter.
    ///
    /// # Errors
    /// Where the n-gram has no words, a rate or threshold is not between 0 and 1, or the filter would not fit the
    /// address space.
    pub fn new(options: &BloomOptions) -> Result<ParagraphFilter, Error> {
        if options.ngram == 0 {
            return Err(Error::setting("dedup.ngram", 0, "an n-gram has at least one word"));
        }
        if !(options.false_positive_rate > 0.0 && options.false_positive_rate < 1.0) {
            let found = options.false_positive_rate;
            return Err(Error::setting(
                "dedup.false_positive_rate",
                found,
                "choose a number between 0 and 1",
            ));
        }
        if !(options.threshold > 0.0 && options.threshold <= 1.0) {
            return Err(Error::setting(
                "dedup.threshold",
                options.threshold,
                "choose a number above 0, at most 1",
            ));
        }
        let words = options.bytes() / 8;
        let mut bits = Vec::new();
        bits.try_reserve_exact(words as usize).map_err(|_| {
            let found = format!("{} ({} bytes)", options.expected_ngrams, options.bytes());
            Error::setting(
                "dedup.expected_ngrams",
                found,
                "the filter does not fit in memory; expect fewer n-grams",
            )
        })?;
        bits.resize(words as usize, 0);
        Ok(ParagraphFilter { options: options.clone(), words: bits, inserted: 0 })
    }

    /// The probability that an n-gram not yet seen counts as seen, given what has been inserted: above the wanted rate
    /// once more n-grams came than were expected.
    pub fn false_positive_rate(&self) -> f64 {
        let (bits, probes) = (self.words.len() as f64 * 64.0, f64::from(self.options.probes()));
        (1.0 - (-probes * self.inserted as f64 / bits).exp()).powf(probes)
    }

    /// Takes documents in order; hashing runs on the current rayon pool.
    pub fn filter<'t>(&mut self, texts: &[&'t str]) -> Vec<Paragraphs<'t>> {
        let hashed: Vec<Hashed> = texts.par_iter().map(|text| hash(text, self.options.ngram)).collect();
        texts.iter().zip(&hashed).map(|(text, hashed)| self.judge(text, hashed)).collect()
    }

    fn judge<'t>(&mut self, text: &'t str, hashed: &Hashed) -> Paragraphs<'t> {
        let (mut from, mut first) = (0, 0);
        let mut kept: Vec<(usize, usize)> = Vec::new();
        let mut fresh: Vec<u64> = Vec::new();
        let mut seen_in_all = 0;
        for &(end, last) in &hashed.paragraphs {
            let ngrams = &hashed.ngrams[first..last];
            let seen = ngrams.iter().filter(|&&ngram| self.contains(ngram)).count();
            seen_in_all += seen;
            if self.options.unit == BloomUnit::Document || !self.reached(seen, ngrams.len()) {
                fresh.extend(ngrams);
                match kept.last_mut() {
                    Some(run) if run.1 == from => run.1 = end,
                    _ => kept.push((from, end)),
                }
            }
            (from, first) = (end, last);
        }
        let whole =
            self.options.unit != BloomUnit::Paragraph && self.reached(seen_in_all, hashed.ngrams.len());
        if whole || (kept.is_empty() && !text.is_empty()) {
            return Paragraphs::Drop;
        }
        fresh.into_iter().for_each(|ngram| self.insert(ngram));
        match kept[..] {
            [(0, end)] if end == text.len() => Paragraphs::Keep(Cow::Borrowed(text)),
            _ => Paragraphs::Keep(Cow::Owned(kept.iter().map(|&(from, end)| &text[from..end]).collect())),
        }
    }

    fn reached(&self, seen: usize, all: usize) -> bool {
        all > 0 && seen as f64 >= self.options.threshold * all as f64
    }

    /// Bit positions of an n-gram by double hashing (Kirsch and Mitzenmacher 2006).
    fn positions(&self, ngram: u64) -> impl Iterator<Item = u64> + use<> {
        let bits = self.words.len() as u64 * 64;
        let step = (ngram.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..self.options.probes()).scan(ngram, move |at, _| {
            let position = ((u128::from(*at) * u128::from(bits)) >> 64) as u64;
            *at = at.wrapping_add(step);
            Some(position)
        })
    }

    fn contains(&self, ngram: u64) -> bool {
        self.positions(ngram).all(|bit| self.words[(bit / 64) as usize] >> (bit % 64) & 1 == 1)
    }

    fn insert(&mut self, ngram: u64) {
        let mut new = false;
        for bit in self.positions(ngram) {
            let word = &mut self.words[(bit / 64) as usize];
            new |= *word >> (bit % 64) & 1 == 0;
            *word |= 1 << (bit % 64);
        }
        self.inserted += u64::from(new);
    }
}

/// The n-grams of all paragraphs of a text.
fn hash(text: &str, ngram: usize) -> Hashed {
    let mut hashed = Hashed { paragraphs: Vec::new(), ngrams: Vec::new() };
    let mut words: Vec<u64> = Vec::new();
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        end += line.len();
        words.clear();
        each_word(line, |word| words.push(word));
        hashed.ngrams.extend(words.windows(ngram).map(|window| {
            let hash = window.iter().fold(0x6a09_e667_f3bc_c908u64, |hash, &word| {
                (hash.rotate_left(29) ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9)
            });
            (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb)
        }));
        hashed.paragraphs.push((end, hashed.ngrams.len()));
    }
    hashed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(unit: BloomUnit) -> BloomOptions {
        BloomOptions { expected_ngrams: 100_000, unit, ..BloomOptions::default() }
    }

    fn line(from: usize, words: usize) -> String {
        (from..from + words)
            .map(|i| format!("w{}x ", ["a", "b", "c", "d"][i % 4].repeat(i / 4)))
            .collect::<String>()
            + "\n"
    }

    #[test]
    fn repeated_paragraphs_are_cut_and_the_first_stays() {
        let mut filter = ParagraphFilter::new(&options(BloomUnit::Paragraph)).unwrap();
        let (a, b, c) = (line(0, 30), line(40, 30), line(80, 30));
        let first = format!("{a}short\n{b}");
        let second = format!("{c}short\n{b}tail");
        let found = filter.filter(&[&first, &second, &a, ""]);
        assert_eq!(found[0], Paragraphs::Keep(Cow::Borrowed(&first[..])));
        assert_eq!(found[1], Paragraphs::Keep(Cow::Owned(format!("{c}short\ntail"))));
        assert_eq!(found[2], Paragraphs::Drop);
        assert_eq!(found[3], Paragraphs::Keep(Cow::Borrowed("")));
    }

    #[test]
    fn whole_documents_are_judged_over_all_their_ngrams() {
        let mut filter = ParagraphFilter::new(&options(BloomUnit::Document)).unwrap();
        let (a, b) = (line(0, 100), line(120, 20));
        let (mixed, mostly_new) = (format!("{a}{b}"), format!("{b}{}", line(160, 40)));
        let found = filter.filter(&[&a, &mixed, &mostly_new]);
        assert_eq!(found[1], Paragraphs::Drop);
        assert!(matches!(found[2], Paragraphs::Keep(Cow::Borrowed(_))));
    }

    #[test]
    fn the_filter_is_sized_for_its_rate() {
        let options = BloomOptions { expected_ngrams: 50_000, ..BloomOptions::default() };
        // 9.585 bits an element at one percent.
        assert!((options.bytes() as f64 * 8.0 / 50_000.0 - 9.585).abs() < 0.01);
        let mut filter = ParagraphFilter::new(&options).unwrap();
        let ngram = |i: u64| crate::dedup::generate::SplitMix(i).next();
        (0..50_000).for_each(|i| filter.insert(ngram(i)));
        assert!((0..50_000).all(|i| filter.contains(ngram(i))));
        let false_positives = (50_000..150_000).filter(|&i| filter.contains(ngram(i))).count();
        assert!((600..1500).contains(&false_positives), "{false_positives} of 100000");
        assert!((filter.false_positive_rate() - 0.01).abs() < 0.003, "{}", filter.false_positive_rate());
    }
}
