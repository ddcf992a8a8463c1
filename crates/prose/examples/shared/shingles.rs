//! How much of a text is in another, by runs of four words: the measure of Scrapinghub's article extraction benchmark.

use std::collections::HashMap;

/// Words of a shingle.
const WORDS: usize = 4;

/// Texts found against the true ones, every page of the same weight.
#[derive(Debug, Default)]
pub struct Overlap {
    precisions: Vec<f64>,
    recalls: Vec<f64>,
}

impl Overlap {
    /// Counts a page.
    pub fn add(&mut self, truth: &str, found: &str) {
        let (truth, found) = (shingles(truth), shingles(found));
        let both: usize = truth.iter().map(|(words, n)| n.min(found.get(words).unwrap_or(&0))).sum();
        let (all_true, all_found): (usize, usize) = (truth.values().sum(), found.values().sum());
        // As there: a page without text found says nothing of precision.
        if all_found > 0 {
            self.precisions.push(both as f64 / all_found as f64);
        }
        if all_true > 0 {
            self.recalls.push(both as f64 / all_true as f64);
        }
    }

    /// The share of what was found that is true, the mean over pages.
    pub fn precision(&self) -> f64 {
        mean(&self.precisions)
    }

    /// The share of the true text that was found, the mean over pages.
    pub fn recall(&self) -> f64 {
        mean(&self.recalls)
    }

    /// The harmonic mean of both means.
    pub fn f1(&self) -> f64 {
        let (p, r) = (self.precision(), self.recall());
        if p + r == 0.0 { 0.0 } else { 2.0 * p * r / (p + r) }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Runs of words with their number; one shorter run for a text of fewer words.
fn shingles(text: &str) -> HashMap<Vec<&str>, usize> {
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
    let mut found = HashMap::new();
    for run in words.windows(WORDS.min(words.len()).max(1)) {
        *found.entry(run.to_vec()).or_default() += 1;
    }
    found
}
