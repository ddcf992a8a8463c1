//! Labelled web pages from a seed: what an extractor should keep and drop is known, since we wrote the page.
//!
//! Five kinds of sites in several ways to write them (HTML5 elements, `div` with names, tables as of 2003), with
//! navigation, teasers, comments, newsletters and footers around the content. They measure and test extractors without
//! anybody else's pages. The score is that of trafilatura's own evaluation: a segment counts if it stands in the text,
//! white space aside.

mod kinds;
mod parts;
mod words;

use serde::{Deserialize, Serialize};

use words::Dice;

/// One page with its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelledPage {
    /// The source.
    pub html: String,
    /// Segments of the content.
    pub with: Vec<String>,
    /// Segments that are not part of it.
    pub without: Vec<String>,
}

/// Hits and misses of an extractor over pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Wanted segments that were found.
    pub true_positives: u64,
    /// Unwanted segments that were found.
    pub false_positives: u64,
    /// Wanted segments that were not found.
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

    /// The share of what was found that was wanted.
    pub fn precision(&self) -> f64 {
        self.true_positives as f64 / (self.true_positives + self.false_positives).max(1) as f64
    }

    /// The share of what was wanted that was found.
    pub fn recall(&self) -> f64 {
        self.true_positives as f64 / (self.true_positives + self.false_negatives).max(1) as f64
    }

    /// The harmonic mean of both.
    pub fn f1(&self) -> f64 {
        let (p, r) = (self.precision(), self.recall());
        if p + r == 0.0 { 0.0 } else { 2.0 * p * r / (p + r) }
    }
}

fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `count` pages, kind after kind; the same seed gives the same pages.
pub fn pages(seed: u64, count: usize) -> Vec<LabelledPage> {
    (0..count).map(|index| kinds::page(seed, index)).collect()
}

/// A page being written.
struct Page {
    dice: Dice,
    html: String,
    with: Vec<String>,
    without: Vec<String>,
    /// HTML5 elements rather than named `div`s.
    semantic: bool,
}

impl Page {
    fn push(&mut self, html: &str) {
        self.html.push_str(html);
    }

    fn wanted(&mut self, segment: &str) {
        if self.with.len() < 6 {
            self.with.push(segment.to_string());
        }
    }

    fn unwanted(&mut self, segment: &str) {
        if self.without.len() < 6 {
            self.without.push(segment.to_string());
        }
    }
}
