//! Exact deduplication of any number of documents: an external sort brings equal digests together, and the first
//! document of each group is kept. [`Unique`](crate::dedup::Unique) does the same in one pass if the digests fit in
//! memory.

use std::path::Path;

use md5::{Digest as _, Md5};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::dedup::engine::{Engine, KeyTable, KeyWriter, ROW_BYTES};
use crate::dedup::fuzzy::{Batches, Duplicates, Needs, TableShape, connect};
use crate::dedup::numbering::NumberRuns;
use crate::error::Error;

/// Digest that stands for a text when texts are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Digest {
    /// 128-bit XXH3: n documents collide with a probability of n^2 / 2^129, by chance, not by intent.
    #[default]
    Xxh3,
    /// MD5, as Curator compares texts.
    Md5,
}

impl Digest {
    /// Returns 128 bits of `text`. MD5's first byte is the most significant, so that the number in hexadecimal is the
    /// usual digest.
    pub fn of(self, text: &str) -> u128 {
        match self {
            Digest::Xxh3 => XxHash3_128::oneshot(text.as_bytes()),
            Digest::Md5 => u128::from_be_bytes(Md5::digest(text.as_bytes()).into()),
        }
    }
}

/// Partitions of the table, sorted one after another.
const PARTITIONS: usize = 16;

/// Memory and disk needed by [`exact`] for `documents` documents, with an engine that sorts in `engine_bytes`.
pub fn exact_needs(documents: u64, engine_bytes: u64) -> Needs {
    // Digests fall into the partitions uniformly at random; an eighth of headroom is enough.
    let rows_each = documents / PARTITIONS as u64 / 8 * 9 + 4096;
    let table = TableShape { partitions: PARTITIONS as u64, rows_each, row_bytes: ROW_BYTES + 8 };
    table.needs(documents, engine_bytes)
}

/// Finds documents with equal texts; the first of each group is kept. Digests are stored under `work`, which is
/// emptied at the end.
///
/// # Errors
/// A document cannot be read, a number does not ascend, or a file in the work folder cannot be written or read.
pub fn exact<S: AsRef<str> + Send + Sync>(
    digest: Digest,
    documents: impl Iterator<Item = Result<(u64, S), Error>>,
    work: &Path,
    engine: &Engine,
) -> Result<Duplicates, Error> {
    let mut finder = ExactFinder::new(work)?;
    for batch in Batches::new(documents) {
        let batch = batch?;
        let digests: Vec<u128> = batch.par_iter().map(|(_, text)| digest.of(text.as_ref())).collect();
        batch.iter().zip(digests).try_for_each(|((number, _), digest)| finder.take(*number, digest))?;
    }
    finder.finish(engine)
}

/// Incremental form of [`exact`], for callers that digest texts on their own threads.
pub struct ExactFinder {
    table: KeyTable,
    writer: KeyWriter,
    numbering: NumberRuns,
}

impl ExactFinder {
    /// Creates a finder that stores digests under `work`, which is emptied at the end.
    ///
    /// # Errors
    /// A file cannot be created in the work folder.
    pub fn new(work: &Path) -> Result<ExactFinder, Error> {
        let table = KeyTable::new(work, PARTITIONS, true);
        let writer = table.writer(0)?;
        Ok(ExactFinder { table, writer, numbering: NumberRuns::default() })
    }

    /// Adds the digest of the next document.
    ///
    /// # Errors
    /// `number` does not ascend, or the disk is full.
    pub fn take(&mut self, number: u64, digest: u128) -> Result<(), Error> {
        let place = self.numbering.push(number)?;
        let (high, low) = ((digest >> 64) as u64, digest as u64);
        self.writer.push((high % PARTITIONS as u64) as usize, high, low, place)
    }

    /// Finds documents with equal digests.
    ///
    /// # Errors
    /// A file in the work folder cannot be written or read.
    pub fn finish(self, engine: &Engine) -> Result<Duplicates, Error> {
        let ExactFinder { table, writer, numbering } = self;
        writer.finish()?;
        let components = connect(engine, table, PARTITIONS, numbering.len())?;
        Ok(Duplicates { numbering, components, unhashed: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_is_the_usual_one() {
        assert_eq!(format!("{:032x}", Digest::Md5.of("abc")), "900150983cd24fb0d6963f7d28e17f72");
        assert_ne!(Digest::Xxh3.of("a"), Digest::Xxh3.of("b"));
    }
}
