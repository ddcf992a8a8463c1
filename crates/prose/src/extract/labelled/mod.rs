//! Seeded labelled web pages: since the pages are generated, it is known what an extractor should keep and drop.
//!
//! There are five kinds of sites in several markup styles (HTML5 elements, named `div`s, tables as of 2003), with
//! navigation, teasers, comments, newsletters and footers around the content. They are used to measure and test
//! extractors without third-party pages. The score is that of trafilatura's own evaluation: a segment counts if it
//! occurs in the text, ignoring white space.

mod kinds;
mod page;
mod parts;
mod words;

pub use page::LabelledPage;

/// Hits and misses of an extractor, summed over pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Expected segments that were found.
    pub true_positives: u64,
    /// Unwanted segments that were found.
    pub false_positives: u64,
    /// Expected segments that were not found.
    pub false_negatives: u64,
}

impl Score {
    /// Adds one page.
    pub fn add(&mut self, page: &LabelledPage, text: &str) {
        let text = joined(text);
        let found =
            |segments: &[String]| segments.iter().filter(|s| text.contains(&joined(s))).count() as u64;
        let hits = found(&page.with);
        self.true_positives += hits;
        self.false_negatives += page.with.len() as u64 - hits;
        self.false_positives += found(&page.without);
    }

    /// Share of the found segments that were expected.
    pub fn precision(&self) -> f64 {
        self.true_positives as f64 / (self.true_positives + self.false_positives).max(1) as f64
    }

    /// Share of the expected segments that were found.
    pub fn recall(&self) -> f64 {
        self.true_positives as f64 / (self.true_positives + self.false_negatives).max(1) as f64
    }

    /// Harmonic mean of precision and recall.
    pub fn f1(&self) -> f64 {
        let (p, r) = (self.precision(), self.recall());
        if p + r == 0.0 { 0.0 } else { 2.0 * p * r / (p + r) }
    }
}

fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Generates `count` pages, cycling through the kinds; the same seed gives the same pages.
pub fn pages(seed: u64, count: usize) -> Vec<LabelledPage> {
    (0..count).map(|index| kinds::page(seed, index)).collect()
}
