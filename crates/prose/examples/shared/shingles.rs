//! Overlap of two texts in runs of four words: the measure of Scrapinghub's article extraction benchmark.

use std::collections::HashMap;

/// Number of words in a shingle.
const WORDS: usize = 4;

/// Extracted texts compared with the true ones, with equal weight for every page.
#[derive(Debug, Default)]
pub struct Overlap {
    precisions: Vec<f64>,
    recalls: Vec<f64>,
}

impl Overlap {
    /// Adds a page.
    pub fn add(&mut self, truth: &str, found: &str) {
        let (truth, found) = (shingles(truth), shingles(found));
        let both: usize = truth.iter().map(|(words, n)| n.min(found.get(words).unwrap_or(&0))).sum();
        let (all_true, all_found): (usize, usize) = (truth.values().sum(), found.values().sum());
        // The benchmark does not count a page without extracted text for precision.
        if all_found > 0 {
            self.precisions.push(both as f64 / all_found as f64);
        }
        if all_true > 0 {
            self.recalls.push(both as f64 / all_true as f64);
        }
    }

    /// Share of the extracted text that is true, averaged over pages.
    pub fn precision(&self) -> f64 {
        mean(&self.precisions)
    }

    /// Share of the true text that was extracted, averaged over pages.
    pub fn recall(&self) -> f64 {
        mean(&self.recalls)
    }

    /// Harmonic mean of both averages.
    pub fn f1(&self) -> f64 {
        let (p, r) = (self.precision(), self.recall());
        if p + r == 0.0 { 0.0 } else { 2.0 * p * r / (p + r) }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Runs of words with their counts; a single shorter run for a text of fewer words.
fn shingles(text: &str) -> HashMap<Vec<&str>, usize> {
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
    let mut found = HashMap::new();
    for run in words.windows(WORDS.min(words.len()).max(1)) {
        *found.entry(run.to_vec()).or_default() += 1;
    }
    found
}
