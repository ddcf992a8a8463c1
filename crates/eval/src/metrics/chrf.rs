//! chrF and chrF++ as `sacrebleu.corpus_chrf` computes them: characters up to six, words up to `words`, beta 2.

use std::collections::HashMap;

use super::{counted, shared};
use crate::python::words;

/// Largest order of characters.
const CHARACTERS: usize = 6;
/// Weight of recall against precision, squared.
const FACTOR: f64 = 4.0;

/// Counts per order: of the answer, of the reference, of both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChrfCounts(Vec<[usize; 3]>);

impl ChrfCounts {
    /// Counts of an answer against that one of its references with the best score. `word_order` is 0 for chrF and 2 for
    /// chrF++.
    pub fn of(answer: &str, references: &[String], word_order: usize) -> ChrfCounts {
        let own = grams(answer, word_order);
        let mut best: Option<(f64, ChrfCounts)> = None;
        for reference in references {
            let other = grams(reference, word_order);
            let count = |(a, b): (&HashMap<String, usize>, &HashMap<String, usize>)| {
                let sum = |counts: &HashMap<String, usize>| counts.values().sum();
                [if b.is_empty() { 0 } else { sum(a) }, sum(b), shared(a, b)]
            };
            let counts = ChrfCounts(own.iter().zip(&other).map(count).collect());
            let score = counts.score();
            if best.as_ref().is_none_or(|(most, _)| score > *most) {
                best = Some((score, counts));
            }
        }
        best.map(|(_, counts)| counts).unwrap_or_default()
    }

    /// Adds the counts of another segment.
    pub fn add(&mut self, other: &ChrfCounts) {
        self.0.resize(self.0.len().max(other.0.len()), [0; 3]);
        for (sum, counts) in self.0.iter_mut().zip(&other.0) {
            (0..3).for_each(|at| sum[at] += counts[at]);
        }
    }

    /// The score, from 0 to 100.
    pub fn score(&self) -> f64 {
        let (mut precision, mut recall, mut orders) = (0.0, 0.0, 0.0);
        for [own, reference, both] in self.0.iter().filter(|[own, reference, _]| *own > 0 && *reference > 0) {
            precision += *both as f64 / *own as f64;
            recall += *both as f64 / *reference as f64;
            orders += 1.0;
        }
        if precision + recall == 0.0 {
            return 0.0;
        }
        let (precision, recall) = (precision / orders, recall / orders);
        100.0 * ((1.0 + FACTOR) * precision * recall / (FACTOR * precision + recall))
    }
}

/// Counts of n-grams of each order: characters without white space, then words.
fn grams(text: &str, word_order: usize) -> Vec<HashMap<String, usize>> {
    let chars: Vec<char> = words(text).flat_map(str::chars).collect();
    let mut all: Vec<HashMap<String, usize>> =
        (1..=CHARACTERS).map(|n| counted(chars.windows(n).map(|gram| gram.iter().collect()))).collect();
    if word_order > 0 {
        let parts: Vec<String> = words(text).flat_map(parted).collect();
        all.extend((1..=word_order).map(|n| counted(parts.windows(n).map(|gram| gram.join(" ")))));
    }
    all
}

/// A word without the punctuation at its end or else its beginning, and that.
fn parted(word: &str) -> Vec<String> {
    let chars: Vec<char> = word.chars().collect();
    let (first, last) = (chars[0], chars[chars.len() - 1]);
    let text = |chars: &[char]| chars.iter().collect::<String>();
    match chars.len() {
        1 => vec![word.to_string()],
        n if last.is_ascii_punctuation() => vec![text(&chars[..n - 1]), text(&chars[n - 1..])],
        _ if first.is_ascii_punctuation() => vec![text(&chars[..1]), text(&chars[1..])],
        _ => vec![word.to_string()],
    }
}
