//! Repeated paragraphs by a Bloom filter of word n-grams, in one pass and with bounded memory (the method of DCLM's Big
//! Friendly Filter).
//!
//! Once more n-grams have been inserted than a filter is sized for, it reports nearly everything as seen, and all
//! text would be dropped. A full filter is therefore closed and followed by another one, half as large as the first
//! and then doubling each time, with half the error rate (scalable Bloom filters, Almeida et al. 2007), which keeps
//! the combined rate below twice the requested one. If the next filter does not fit into memory, the run ends with an
//! error.
//!
//! A paragraph is dropped if most of its n-grams have been seen; the n-grams of kept paragraphs are remembered. One
//! thread processes documents in order, so the same documents are kept on every machine; hashing runs on all threads.

use std::borrow::Cow;

use fathom_base::human;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dedup::bloom_layer::{Layer, layer_bytes};
use crate::dedup::words::each_word;
use crate::error::Error;

/// Unit that is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BloomUnit {
    /// Paragraphs (lines that are not blank), each judged alone.
    Paragraph,
    /// Whole documents.
    Document,
    /// Paragraphs, and the whole document where the threshold is passed over all its n-grams.
    #[default]
    Both,
}

/// How repeated paragraphs are found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BloomOptions {
    /// Words of an n-gram (DCLM: 13); a paragraph of fewer words stays, and is not remembered.
    #[schemars(range(min = 1))]
    pub ngram: usize,
    /// A paragraph or document goes when a larger share of its n-grams came before (DCLM: 0.8).
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub threshold: f64,
    /// Wanted probability that an n-gram counts as seen though it was not (DCLM: 0.01); up to twice that where more n-grams
    /// come than were expected.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub false_positive_rate: f64,
    /// Different n-grams that the filter is sized for; more make it grow within `memory`. 0 takes a sixth of the bytes of
    /// text, about its words.
    pub expected_ngrams: u64,
    /// Unit that is dropped.
    pub unit: BloomUnit,
}

impl Default for BloomOptions {
    fn default() -> BloomOptions {
        BloomOptions {
            ngram: 13,
            threshold: 0.8,
            false_positive_rate: 0.01,
            expected_ngrams: 0,
            unit: BloomUnit::Both,
        }
    }
}

impl BloomOptions {
    /// Returns the options sized for a text of `bytes` bytes if no size is given.
    pub fn for_text(&self, bytes: u64) -> BloomOptions {
        let expected = if self.expected_ngrams == 0 { bytes / 6 } else { self.expected_ngrams };
        BloomOptions { expected_ngrams: expected.max(1), ..self.clone() }
    }

    /// Bytes of the first filter, sufficient for the expected number of n-grams.
    pub fn bytes(&self) -> u64 {
        layer_bytes(self.expected_ngrams, self.false_positive_rate)
    }

    /// Checks the options.
    ///
    /// # Errors
    /// The n-gram has no words, or a rate or threshold is not between 0 and 1.
    pub fn check(&self) -> Result<(), Error> {
        if self.ngram == 0 {
            return Err(Error::setting("ngram", 0, "an n-gram has at least one word"));
        }
        if !(self.false_positive_rate > 0.0 && self.false_positive_rate < 1.0) {
            let found = self.false_positive_rate;
            return Err(Error::setting("false_positive_rate", found, "choose a number between 0 and 1"));
        }
        if !(0.0..1.0).contains(&self.threshold) {
            let advice = "choose a number from 0 to below 1";
            return Err(Error::setting("threshold", self.threshold, advice));
        }
        Ok(())
    }
}

/// Set of the n-grams seen so far.
pub struct ParagraphFilter {
    options: BloomOptions,
    most_bytes: u64,
    /// The last layer takes new n-grams, the others are full.
    layers: Vec<Layer>,
}

/// A document's paragraphs and their hashed n-grams; computed on any thread.
struct ParagraphHashes {
    /// End of each paragraph in the text, including its line end, and in `ngrams`.
    paragraphs: Vec<(usize, usize)>,
    ngrams: Vec<u64>,
}

/// Outcome for a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Paragraphs<'t> {
    /// The document is kept, without the paragraphs seen before.
    Keep(Cow<'t, str>),
    /// Nothing is left of the document.
    Drop,
}

impl ParagraphFilter {
    /// Creates an empty filter that never exceeds `most_bytes`.
    ///
    /// # Errors
    /// The options are invalid, or the expected n-grams need more memory than that.
    pub fn new(options: &BloomOptions, most_bytes: u64) -> Result<ParagraphFilter, Error> {
        options.check()?;
        let mut filter = ParagraphFilter { options: options.clone(), most_bytes, layers: Vec::new() };
        filter.grow()?;
        Ok(filter)
    }

    /// Opens the next layer.
    fn grow(&mut self) -> Result<(), Error> {
        let number = self.layers.len() as i32;
        let rate = self.options.false_positive_rate * 0.5f64.powi(number);
        let first = self.options.expected_ngrams.max(1);
        let expected = match number {
            0 => first,
            more => first.div_ceil(2).saturating_mul(1 << (more - 1).min(62)),
        };
        let needed = self.bytes().saturating_add(layer_bytes(expected, rate));
        let layer = if needed <= self.most_bytes { Layer::new(expected, rate) } else { None };
        let Some(layer) = layer else {
            let (wanted, given) = (human::bytes(needed), human::bytes(self.most_bytes));
            let ngrams = human::grouped(self.options.expected_ngrams);
            let found = match self.ngrams() {
                0 => format!("{ngrams}, whose filter takes {wanted} of {given}"),
                came => format!(
                    "{ngrams}, {} came, and for more the filter would take {wanted} of {given}",
                    human::grouped(came)
                ),
            };
            let advice = "raise `memory` or `false_positive_rate`, expect fewer where the text repeats itself, or curate the \
                          text in several runs";
            return Err(Error::setting("expected_ngrams", found, advice));
        };
        self.layers.push(layer);
        Ok(())
    }

    /// Bytes currently used.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(Layer::bytes).sum()
    }

    /// Number of distinct n-grams inserted.
    pub fn ngrams(&self) -> u64 {
        self.layers.iter().map(|layer| layer.inserted).sum()
    }

    /// Returns true if more n-grams were inserted than expected.
    pub fn has_grown(&self) -> bool {
        self.layers.len() > 1
    }

    /// Current probability that an unseen n-gram counts as seen.
    pub fn false_positive_rate(&self) -> f64 {
        1.0 - self.layers.iter().map(|layer| 1.0 - layer.false_positive_rate()).product::<f64>()
    }

    /// Filters documents in order; hashing runs on the current rayon pool.
    ///
    /// # Errors
    /// The n-grams no longer fit into memory.
    pub fn filter<'t>(&mut self, texts: &[&'t str]) -> Result<Vec<Paragraphs<'t>>, Error> {
        let hashed: Vec<ParagraphHashes> =
            texts.par_iter().map(|text| hash(text, self.options.ngram)).collect();
        texts.iter().zip(&hashed).map(|(text, hashed)| self.judge(text, hashed)).collect()
    }

    fn judge<'t>(&mut self, text: &'t str, hashed: &ParagraphHashes) -> Result<Paragraphs<'t>, Error> {
        // The whole document is judged against other documents only; its own repetitions do not count.
        let known: Vec<bool> = hashed.ngrams.iter().map(|&ngram| self.contains(ngram)).collect();
        let seen_in_all = known.iter().filter(|known| **known).count();
        if self.options.unit != BloomUnit::Paragraph && self.passed(seen_in_all, known.len()) {
            return Ok(Paragraphs::Drop);
        }
        let (mut from, mut first) = (0, 0);
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for &(end, last) in &hashed.paragraphs {
            let ngrams = &hashed.ngrams[first..last];
            let now = |(&ngram, &known): (&u64, &bool)| known || self.contains(ngram);
            let seen = || ngrams.iter().zip(&known[first..last]).filter(|pair| now(*pair)).count();
            if self.options.unit == BloomUnit::Document || !self.passed(seen(), ngrams.len()) {
                // Inserted at once, so that the following paragraphs are judged against this one too.
                ngrams.iter().try_for_each(|&ngram| self.insert(ngram))?;
                match kept.last_mut() {
                    Some(run) if run.1 == from => run.1 = end,
                    _ => kept.push((from, end)),
                }
            }
            (from, first) = (end, last);
        }
        if kept.is_empty() && !text.is_empty() {
            return Ok(Paragraphs::Drop);
        }
        Ok(Paragraphs::Keep(match kept[..] {
            [(0, end)] if end == text.len() => Cow::Borrowed(text),
            _ => Cow::Owned(kept.iter().map(|&(from, end)| &text[from..end]).collect()),
        }))
    }

    /// Returns true if the seen share exceeds the threshold.
    fn passed(&self, seen: usize, all: usize) -> bool {
        seen as f64 > self.options.threshold * all as f64
    }

    fn contains(&self, ngram: u64) -> bool {
        self.layers.iter().any(|layer| layer.contains(ngram))
    }

    fn insert(&mut self, ngram: u64) -> Result<(), Error> {
        if self.contains(ngram) {
            return Ok(());
        }
        if self.layers.last().is_none_or(|layer| layer.inserted >= layer.expected) {
            self.grow()?;
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.insert(ngram);
        }
        Ok(())
    }
}

/// Hashes the n-grams of all paragraphs of a text.
fn hash(text: &str, ngram: usize) -> ParagraphHashes {
    let mut hashed = ParagraphHashes { paragraphs: Vec::new(), ngrams: Vec::new() };
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
        let mut filter = ParagraphFilter::new(&options(BloomUnit::Paragraph), 1 << 20).unwrap();
        let (a, b, c) = (line(0, 30), line(40, 30), line(80, 30));
        let first = format!("{a}short\n{b}");
        let second = format!("{c}short\n{b}tail");
        let found = filter.filter(&[&first, &second, &a, ""]).unwrap();
        assert_eq!(found[0], Paragraphs::Keep(Cow::Borrowed(&first[..])));
        assert_eq!(found[1], Paragraphs::Keep(Cow::Owned(format!("{c}short\ntail"))));
        assert_eq!(found[2], Paragraphs::Drop);
        assert_eq!(found[3], Paragraphs::Keep(Cow::Borrowed("")));
    }

    #[test]
    fn a_paragraph_is_known_from_its_first_line_on() {
        for unit in [BloomUnit::Paragraph, BloomUnit::Both] {
            let mut filter = ParagraphFilter::new(&options(unit), 1 << 20).unwrap();
            let (a, b) = (line(0, 30), line(40, 30));
            let text = format!("{}{b}", a.repeat(10));
            let found = filter.filter(&[&text]).unwrap();
            assert_eq!(found[0], Paragraphs::Keep(Cow::Owned(format!("{a}{b}"))), "{unit:?}");
        }
        // Four of five n-grams reach the threshold without exceeding it.
        let mut filter = ParagraphFilter::new(&options(BloomUnit::Paragraph), 1 << 20).unwrap();
        let (first, second) = (line(0, 16), line(0, 16).trim_end().to_owned() + " new\n");
        let found = filter.filter(&[&first, &second]).unwrap();
        assert_eq!(found[1], Paragraphs::Keep(Cow::Borrowed(&second[..])));
    }

    #[test]
    fn whole_documents_are_judged_over_all_their_ngrams() {
        let mut filter = ParagraphFilter::new(&options(BloomUnit::Document), 1 << 20).unwrap();
        let (a, b) = (line(0, 100), line(120, 20));
        let (mixed, mostly_new) = (format!("{a}{b}"), format!("{b}{}", line(160, 40)));
        let found = filter.filter(&[&a, &mixed, &mostly_new]).unwrap();
        assert_eq!(found[1], Paragraphs::Drop);
        assert!(matches!(found[2], Paragraphs::Keep(Cow::Borrowed(_))));
    }

    #[test]
    fn the_filter_is_sized_for_its_rate() {
        let options = BloomOptions { expected_ngrams: 50_000, ..BloomOptions::default() };
        // 9.585 bits an element at one percent.
        assert!((options.bytes() as f64 * 8.0 / 50_000.0 - 9.585).abs() < 0.01);
        let mut filter = ParagraphFilter::new(&options, 1 << 20).unwrap();
        let ngram = |i: u64| crate::dedup::generate::SplitMix(i).next();
        (0..50_000).for_each(|i| filter.insert(ngram(i)).unwrap());
        assert!((0..50_000).all(|i| filter.contains(ngram(i))));
        let false_positives = (50_000..150_000).filter(|&i| filter.contains(ngram(i))).count();
        assert!((600..1500).contains(&false_positives), "{false_positives} of 100000");
        assert!((filter.false_positive_rate() - 0.01).abs() < 0.003, "{}", filter.false_positive_rate());
    }

    /// Ten paragraphs of twenty words that occur in no other document.
    fn random_document(number: u64) -> String {
        let mut random = crate::dedup::generate::SplitMix(number);
        let mut word = || -> String {
            let letters = random.next();
            (0..8).map(|i| char::from(b'a' + (letters >> (8 * i)) as u8 % 26)).collect()
        };
        (0..10).map(|_| (0..20).map(|_| word() + " ").collect::<String>() + "\n").collect()
    }

    #[test]
    fn more_ngrams_than_expected_drop_nothing() {
        // 8 n-grams per paragraph, 16000 in all, and 500 expected.
        let options = BloomOptions { expected_ngrams: 500, ..BloomOptions::default() };
        let mut filter = ParagraphFilter::new(&options, 1 << 20).unwrap();
        let texts: Vec<String> = (0..200).map(random_document).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let found = filter.filter(&texts).unwrap();
        assert!(
            found.iter().zip(&texts).all(|(found, text)| *found == Paragraphs::Keep(Cow::Borrowed(text)))
        );
        assert!(filter.has_grown() && filter.ngrams() > 15_000, "{}", filter.ngrams());
        assert!(filter.false_positive_rate() < 0.02, "{}", filter.false_positive_rate());
        // All are still known.
        assert!(filter.filter(&texts).unwrap().iter().all(|found| *found == Paragraphs::Drop));
    }

    #[test]
    fn what_does_not_fit_ends_with_an_error() {
        let options = BloomOptions { expected_ngrams: 500, ..BloomOptions::default() };
        let mut filter = ParagraphFilter::new(&options, 4096).unwrap();
        let texts: Vec<String> = (0..200).map(random_document).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let error = filter.filter(&texts).unwrap_err().to_string();
        assert!(error.contains("expected_ngrams") && error.contains("of 4.00 KiB"), "{error}");
        let large = BloomOptions::default().for_text(6 << 30);
        assert_eq!(large.expected_ngrams, 1 << 30);
        let error = ParagraphFilter::new(&large, 1 << 30).err().unwrap().to_string();
        assert!(error.contains(&human::grouped(1 << 30)) && error.contains("of 1.00 GiB"), "{error}");
    }
}
