//! A page with its labelled text.

use serde::{Deserialize, Serialize};

use super::words::Dice;

/// One page with its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelledPage {
    /// HTML source.
    pub html: String,
    /// Segments of the content.
    pub with: Vec<String>,
    /// Segments outside the content.
    pub without: Vec<String>,
}

/// A page being generated.
pub(super) struct Page {
    pub(crate) dice: Dice,
    pub(super) html: String,
    pub(super) with: Vec<String>,
    pub(super) without: Vec<String>,
    /// True for HTML5 elements instead of named `div`s.
    pub(crate) semantic: bool,
}

impl Page {
    pub(crate) fn push(&mut self, html: &str) {
        self.html.push_str(html);
    }

    pub(crate) fn wanted(&mut self, segment: &str) {
        if self.with.len() < 6 {
            self.with.push(segment.to_string());
        }
    }

    pub(crate) fn unwanted(&mut self, segment: &str) {
        if self.without.len() < 6 {
            self.without.push(segment.to_string());
        }
    }
}
