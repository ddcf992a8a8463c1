//! Documents of a batch's rows.

use std::ops::Range;

use crate::Tensor;

/// Rows of a batch that follow each other in one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentRun {
    /// The rows.
    pub rows: Range<usize>,
    /// The document, by its index in the stream; in generation, the sequence.
    pub document: usize,
    /// Number of its tokens before the first of these, which may be on other ranks of a context or of earlier steps.
    pub offset: usize,
}

/// The documents of a batch, for operations that start over with each.
#[derive(Clone, Debug)]
pub struct DocumentRuns {
    /// Ascending, without gaps.
    pub runs: Vec<DocumentRun>,
    /// i32 [2, most + 1]: the first row of each run, and below it the offset; then the number of tokens and 0.
    pub table: Tensor,
}

impl DocumentRuns {
    /// Everything on which work depends.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|run| [run.rows.end as u64, run.offset as u64])
    }
}

/// Places of values that some runs have, by run.
#[derive(Clone, Debug)]
pub struct RunPlaces {
    /// The place of each run's value.
    pub places: Vec<Option<usize>>,
    /// i32 [1, most]: the same, or -1.
    pub table: Tensor,
}

impl RunPlaces {
    /// Runs with a value, each with its place.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.places.iter().enumerate().filter_map(|(run, place)| Some((run, (*place)?)))
    }
}
