//! End-to-end fuzzy deduplication: signatures become band keys on disk, sorting turns equal keys into edges, edges
//! form components, and optionally every duplicate is compared with the kept document.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;

use crate::dedup::bands::{Bands, FuzzyOptions};
use crate::dedup::components::Components;
use crate::dedup::engine::{Engine, KeyTable, KeyWriter, ROW_BYTES, WRITER_BYTES};
use crate::dedup::jaccard;
use crate::dedup::minhash::MinHashScratch;
use crate::dedup::numbering::NumberRuns;
use crate::dedup::shingle::Shingles;
use crate::error::Error;

/// Batch limits: number of documents, and approximate bytes of text.
const BATCH_DOCUMENTS: usize = 1024;
const BATCH_BYTES: usize = 8 << 20;

/// Upper bounds of the resources of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of memory, excluding the program and the document being read.
    pub memory_bytes: u64,
    /// Bytes on disk in the work folder and the engine's spill folder.
    pub disk_bytes: u64,
}

/// Resources needed by [`fuzzy`] for `documents` documents and `bytes` bytes of text, with an engine that sorts in
/// `engine_bytes`. A pure function, for use before the start.
pub fn fuzzy_needs(options: &FuzzyOptions, documents: u64, bytes: u64, engine_bytes: u64) -> Needs {
    let table = TableShape { partitions: options.bands as u64, rows_each: documents, row_bytes: ROW_BYTES };
    let mut needs = table.needs(documents, engine_bytes);
    if options.check.is_some() {
        // Texts of the representatives that have duplicates; the members still to come and the kept list of each
        // component.
        needs.disk_bytes = needs.disk_bytes.saturating_add(bytes);
        needs.memory_bytes = needs.memory_bytes.saturating_add(documents.saturating_mul(4 + 48)) + (64 << 20);
    }
    needs
}

/// Shape of a key table, for estimating its resources.
pub(super) struct TableShape {
    pub(super) partitions: u64,
    /// Rows per partition.
    pub(super) rows_each: u64,
    pub(super) row_bytes: u64,
}

impl TableShape {
    /// Resources for writing the table and joining `documents` by it.
    pub(super) fn needs(&self, documents: u64, engine_bytes: u64) -> Needs {
        let TableShape { partitions, rows_each, row_bytes } = *self;
        // Row groups and footers; then one partition sorted, spilled and merged once more.
        let file = rows_each.saturating_mul(row_bytes).saturating_add((rows_each >> 16) * 1024 + 8192);
        let spill = rows_each.saturating_mul(3 * (row_bytes + 8)).saturating_add(1 << 20);
        let fixed = 2 * BATCH_BYTES as u64 + partitions * (WRITER_BYTES + BATCH_DOCUMENTS as u64 * 8);
        Needs {
            memory_bytes: Components::bytes(documents).saturating_add(fixed).saturating_add(engine_bytes),
            disk_bytes: partitions.saturating_mul(file).saturating_add(spill),
        }
    }
}

/// Groups of duplicate documents, by the caller's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicates {
    pub(super) numbering: NumberRuns,
    pub(super) components: Components,
    /// Documents without shingles, which match no other.
    pub unhashed: u64,
}

impl Duplicates {
    /// Total number of documents.
    pub fn documents(&self) -> u64 {
        self.numbering.len()
    }

    /// Representative of document `number`: the first of its cluster, possibly itself. `None` if no document had this
    /// number.
    pub fn representative(&self, number: u64) -> Option<u64> {
        let place = self.numbering.place(number)?;
        Some(self.numbering.number(self.components.parent(place)))
    }

    /// Documents to remove, ascending: all but the first of each cluster.
    pub fn removed(&self) -> impl Iterator<Item = u64> + '_ {
        self.pairs().map(|(document, _)| document)
    }

    /// Documents to remove, each with its representative, ascending.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.components.documents()).filter_map(|place| {
            let parent = self.components.parent(place);
            (parent != place).then(|| (self.numbering.number(place), self.numbering.number(parent)))
        })
    }

    /// Restricts the result to duplicates whose Jaccard similarity to a kept document is at least `threshold`;
    /// `documents` must yield all documents again.
    ///
    /// # Errors
    /// A document cannot be read, or a file in the work folder cannot be written or read.
    pub fn checked<S: AsRef<str>>(
        mut self,
        shingles: Shingles,
        threshold: f64,
        documents: impl Iterator<Item = Result<(u64, S), Error>>,
        work: &Path,
    ) -> Result<Duplicates, Error> {
        let how = (shingles, threshold);
        self.components = jaccard::check(&self.components, &self.numbering, how, documents, work)?;
        Ok(self)
    }

    /// Number of clusters by size, for sizes above 1.
    pub fn sizes(&self) -> BTreeMap<u64, u64> {
        self.components.sizes()
    }
}

/// Finds near-duplicates among documents with ascending numbers. `documents` opens them from the start; it is called
/// once, or twice with [`FuzzyOptions::check`], and must yield the same texts each time. Band keys are stored under
/// `work`, which is emptied at the end. The result depends only on the documents and options; hashing runs on the
/// current rayon pool.
///
/// # Errors
/// A document cannot be read, a number does not ascend, or a file in the work folder cannot be written or read.
pub fn fuzzy<D, S>(
    options: &FuzzyOptions,
    documents: impl Fn() -> Result<D, Error>,
    work: &Path,
    engine: &Engine,
) -> Result<Duplicates, Error>
where
    D: Iterator<Item = Result<(u64, S), Error>>,
    S: AsRef<str> + Send + Sync,
{
    let bands = Bands::new(options)?;
    let mut finder = FuzzyFinder::new(&bands, work)?;
    for batch in Batches::new(documents()?) {
        let batch = batch?;
        let keys: Vec<Vec<u64>> = batch
            .par_iter()
            .map_init(MinHashScratch::default, |scratch, (_, text)| band_keys(&bands, text.as_ref(), scratch))
            .collect();
        batch.iter().zip(&keys).try_for_each(|((number, _), keys)| finder.take(*number, keys))?;
    }
    let found = finder.finish(engine)?;
    match options.check {
        Some(threshold) => found.checked(options.shingles, threshold, documents()?, work),
        None => Ok(found),
    }
}

/// Keys of a text, one per band; empty for a text without shingles.
pub fn band_keys(bands: &Bands, text: &str, scratch: &mut MinHashScratch) -> Vec<u64> {
    let mut keys = Vec::with_capacity(bands.bands());
    bands.keys(text, scratch, &mut keys);
    keys
}

/// Incremental form of [`fuzzy`], for callers that hash texts on their own threads: [`band_keys`] on any thread, then
/// [`FuzzyFinder::take`] in document order.
pub struct FuzzyFinder {
    bands: usize,
    table: KeyTable,
    writer: KeyWriter,
    numbering: NumberRuns,
    unhashed: u64,
}

impl FuzzyFinder {
    /// Creates a finder that stores keys under `work`, which is emptied at the end.
    ///
    /// # Errors
    /// A file cannot be created in the work folder.
    pub fn new(bands: &Bands, work: &Path) -> Result<FuzzyFinder, Error> {
        let table = KeyTable::new(work, bands.bands(), false);
        let writer = table.writer(0)?;
        Ok(FuzzyFinder { bands: bands.bands(), table, writer, numbering: NumberRuns::default(), unhashed: 0 })
    }

    /// Adds the keys of the next document.
    ///
    /// # Errors
    /// `number` does not ascend, or the disk is full.
    pub fn take(&mut self, number: u64, keys: &[u64]) -> Result<(), Error> {
        let place = self.numbering.push(number)?;
        self.unhashed += u64::from(keys.is_empty());
        keys.iter().enumerate().try_for_each(|(band, &key)| self.writer.push(band, key, 0, place))
    }

    /// Joins the documents that share a key.
    ///
    /// # Errors
    /// A file in the work folder cannot be written or read.
    pub fn finish(self, engine: &Engine) -> Result<Duplicates, Error> {
        let FuzzyFinder { bands, table, writer, numbering, unhashed } = self;
        writer.finish()?;
        let components = connect(engine, table, bands, numbering.len())?;
        Ok(Duplicates { numbering, components, unhashed })
    }
}

/// Joins all documents that share a key, one partition at a time, removing each partition when done.
pub(super) fn connect(
    engine: &Engine,
    table: KeyTable,
    partitions: usize,
    documents: u64,
) -> Result<Components, Error> {
    let mut components = Components::new(documents);
    for partition in 0..partitions {
        engine.pairs(&table, partition, |a, b| {
            components.join(a, b);
        })?;
        table.remove(partition)?;
    }
    table.close()?;
    components.flatten();
    Ok(components)
}

/// Groups documents into batches that fit in memory.
pub(super) struct Batches<D> {
    documents: D,
}

impl<D> Batches<D> {
    pub(super) fn new(documents: D) -> Batches<D> {
        Batches { documents }
    }
}

impl<D: Iterator<Item = Result<(u64, S), Error>>, S: AsRef<str>> Iterator for Batches<D> {
    type Item = Result<Vec<(u64, S)>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_DOCUMENTS && bytes < BATCH_BYTES {
            match self.documents.next() {
                Some(Ok((number, text))) => {
                    bytes += text.as_ref().len();
                    batch.push((number, text));
                }
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            }
        }
        (!batch.is_empty()).then_some(Ok(batch))
    }
}
