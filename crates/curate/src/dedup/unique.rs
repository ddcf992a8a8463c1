//! Exact deduplication of a stream: keeps the first of all documents with the same text.

use std::collections::HashSet;

use twox_hash::XxHash3_128;

use crate::counters::{Counters, Reason};
use crate::document::Document;
use crate::error::Error;

/// Equality of texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sameness {
    /// All bytes are equal.
    #[default]
    Bytes,
    /// Lines are equal except for trailing white space and trailing empty lines of the text, so line endings do not
    /// matter.
    Lines,
}

/// Passes on each text once. Texts are compared by their 128-bit XXH3 hash: among a thousand million documents two
/// different ones collide with probability 2e-21 (n^2 / 2^129). Memory is 16 bytes per document, 20 to 40 with the
/// slack of the open-addressing table; the set is used only for membership tests, so its order is irrelevant.
pub struct Unique<I> {
    documents: I,
    sameness: Sameness,
    seen: HashSet<u128>,
    counters: Counters,
}

impl<I> Unique<I> {
    /// Wraps `documents`, dropping duplicates.
    pub fn new(documents: I, sameness: Sameness) -> Unique<I> {
        Unique { documents, sameness, seen: HashSet::new(), counters: Counters::default() }
    }

    /// Underlying document iterator.
    pub(crate) fn inner(&self) -> &I {
        &self.documents
    }

    /// Counters of passed documents and duplicates.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl<I: Iterator<Item = Result<Document, Error>>> Iterator for Unique<I> {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let document = match self.documents.next()? {
                Ok(document) => document,
                Err(error) => return Some(Err(error)),
            };
            if self.seen.insert(hash(&document.text, self.sameness)) {
                self.counters.keep(&document.text);
                return Some(Ok(document));
            }
            self.counters.drop_documents(Reason::Duplicate, 1, document.text.len() as u64);
        }
    }
}

fn hash(text: &str, sameness: Sameness) -> u128 {
    if sameness == Sameness::Bytes {
        return XxHash3_128::oneshot(text.as_bytes());
    }
    let mut hasher = XxHash3_128::new();
    for line in text.trim_end().lines() {
        hasher.write(line.trim_end().as_bytes());
        hasher.write(b"\n");
    }
    hasher.finish_128()
}
