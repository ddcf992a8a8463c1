//! The character histogram filter of NLLB (Costa-jussa et al. 2022, p. 30): the share of characters that are used in
//! trusted text of the language.

use super::unicode::strip;
use crate::Error;
use std::collections::HashSet;
use std::path::Path;

/// Character set of one language.
#[derive(Clone, Debug)]
pub struct Histogram {
    usual: HashSet<char>,
    threshold: f64,
}

impl Histogram {
    /// Creates a filter for the characters in `usual`; texts pass if their share of them is above `threshold` (0.8 as
    /// published).
    pub fn new(usual: impl IntoIterator<Item = char>, threshold: f64) -> Histogram {
        Histogram { usual: usual.into_iter().collect(), threshold }
    }

    /// Reads a histogram file: the first character of every line, up to a line that begins with `]`.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read, [`Error::BadFile`] if it contains no character.
    pub fn open(path: &Path, threshold: f64) -> Result<Histogram, Error> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::read(path, e))?;
        let usual: HashSet<char> =
            text.split('\n').filter_map(|l| l.chars().next()).take_while(|&c| c != ']').collect();
        if usual.is_empty() {
            let detail = "no line before one with `]` names a character".to_string();
            return Err(Error::BadFile { path: path.to_path_buf(), kind: "character histogram", detail });
        }
        Ok(Histogram { usual, threshold })
    }

    /// Number of usual characters in the stripped text, divided by the number of all characters; 0 for an empty text.
    pub fn score(&self, text: &str) -> f64 {
        let usual = strip(text).chars().filter(|c| self.usual.contains(c)).count();
        usual as f64 / text.chars().count().max(1) as f64
    }

    /// Rejects text at or below the threshold as `histogram`.
    ///
    /// # Errors
    /// The [`Refusal`](super::Refusal) with the share.
    pub fn check(&self, text: &str) -> Result<(), super::Refusal> {
        let value = self.score(text);
        if value > self.threshold { Ok(()) } else { Err(super::Refusal { reason: "histogram", value }) }
    }
}
