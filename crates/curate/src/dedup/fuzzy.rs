//! Fuzzy deduplication end to end: signatures to band keys on disk, equal keys to edges by sorting, edges to components,
//! and where asked every duplicate compared with the document that stays.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;

use crate::dedup::bands::{Bands, FuzzyOptions};
use crate::dedup::components::Components;
use crate::dedup::engine::{Engine, KeyTable, KeyWriter, ROW_BYTES, WRITER_BYTES};
use crate::dedup::jaccard;
use crate::dedup::minhash::MinHashScratch;
use crate::dedup::numbering::Numbering;
use crate::dedup::shingle::Shingles;
use crate::error::Error;

/// Documents hashed together: at most so many, and about so many bytes of text.
const BATCH_DOCUMENTS: usize = 1024;
const BATCH_BYTES: usize = 8 << 20;

/// What a run will need at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of memory besides the program and the document being read.
    pub memory_bytes: u64,
    /// Bytes on disk in the work folder and the engine's folder for spills.
    pub disk_bytes: u64,
}

/// What [`fuzzy`] (or [`exact`](crate::dedup::exact)) will need for so many documents and bytes of text, with an engine
/// that sorts in `engine_bytes`. A pure function, to be asked before the start.
pub fn fuzzy_needs(options: &FuzzyOptions, documents: u64, bytes: u64, engine_bytes: u64) -> Needs {
    let table = TableShape { partitions: options.bands as u64, rows_each: documents, row_bytes: ROW_BYTES };
    let mut needs = table.needs(documents, engine_bytes);
    if options.check.is_some() {
        // Texts of representatives, of which each has a duplicate; what remains of each component, and its list.
        needs.disk_bytes = needs.disk_bytes.saturating_add(bytes);
        needs.memory_bytes = needs.memory_bytes.saturating_add(documents.saturating_mul(4 + 48)) + (64 << 20);
    }
    needs
}

/// A table of keys, for its needs.
pub(super) struct TableShape {
    pub(super) partitions: u64,
    /// Rows of one partition.
    pub(super) rows_each: u64,
    pub(super) row_bytes: u64,
}

impl TableShape {
    /// What writing the table and joining `documents` by it needs.
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

/// Which documents are the same, by the caller's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicates {
    pub(super) numbering: Numbering,
    pub(super) components: Components,
    /// Documents without shingles, which are like no other.
    pub unhashed: u64,
}

impl Duplicates {
    /// Documents in all.
    pub fn documents(&self) -> u64 {
        self.numbering.len()
    }

    /// The document that stands for `number`: the first of its cluster, which may be itself. None for a number
    /// that no document had.
    pub fn representative(&self, number: u64) -> Option<u64> {
        let place = self.numbering.place(number)?;
        Some(self.numbering.number(self.components.parent(place)))
    }

    /// Documents to remove, ascending: all but the first of each cluster.
    pub fn removed(&self) -> impl Iterator<Item = u64> + '_ {
        self.pairs().map(|(document, _)| document)
    }

    /// Documents to remove with the one that stands for each, ascending.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.components.documents()).filter_map(|place| {
            let parent = self.components.parent(place);
            (parent != place).then(|| (self.numbering.number(place), self.numbering.number(parent)))
        })
    }

    /// Only those duplicates whose Jaccard similarity to a document that stays is at least `threshold`; `documents`
    /// gives all documents once more.
    ///
    /// # Errors
    /// Where a document cannot be read, or a file of the work folder cannot be written or read.
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

    /// How many clusters there are of each size above 1.
    pub fn sizes(&self) -> BTreeMap<u64, u64> {
        self.components.sizes()
    }
}

/// Finds near-duplicates among documents, whose numbers ascend. `documents` opens them from the start; it is called
/// once, and with [`FuzzyOptions::check`] twice, and must give the same texts again. Band keys lie under `work`, which
/// is empty again at the end. The result depends on the documents and options only; hashing runs on the current
/// rayon pool.
///
/// # Errors
/// Where a document cannot be read, a number does not ascend, or a file of the work folder cannot be written or read.
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

/// The keys of a text, one a band; none for a text without shingles.
pub fn band_keys(bands: &Bands, text: &str, scratch: &mut MinHashScratch) -> Vec<u64> {
    let mut keys = Vec::with_capacity(bands.bands());
    bands.keys(text, scratch, &mut keys);
    keys
}

/// [`fuzzy`] in steps, for callers that hash texts on threads of their own: [`band_keys`] on any of them, then
/// [`FuzzyFinder::take`] in the order of the documents.
pub struct FuzzyFinder {
    bands: usize,
    table: KeyTable,
    writer: KeyWriter,
    numbering: Numbering,
    unhashed: u64,
}

impl FuzzyFinder {
    /// Starts; keys lie under `work`, which is empty again at the end.
    ///
    /// # Errors
    /// Where a file of the work folder cannot be made.
    pub fn new(bands: &Bands, work: &Path) -> Result<FuzzyFinder, Error> {
        let table = KeyTable::new(work, bands.bands(), false);
        let writer = table.writer(0)?;
        Ok(FuzzyFinder { bands: bands.bands(), table, writer, numbering: Numbering::default(), unhashed: 0 })
    }

    /// The keys of the next document.
    ///
    /// # Errors
    /// Where `number` does not ascend, or the disk is full.
    pub fn take(&mut self, number: u64, keys: &[u64]) -> Result<(), Error> {
        let place = self.numbering.push(number)?;
        self.unhashed += u64::from(keys.is_empty());
        keys.iter().enumerate().try_for_each(|(band, &key)| self.writer.push(band, key, 0, place))
    }

    /// Joins the documents that share a key.
    ///
    /// # Errors
    /// Where a file of the work folder cannot be written or read.
    pub fn finish(self, engine: &Engine) -> Result<Duplicates, Error> {
        let FuzzyFinder { bands, table, writer, numbering, unhashed } = self;
        writer.finish()?;
        let components = connect(engine, table, bands, numbering.len())?;
        Ok(Duplicates { numbering, components, unhashed })
    }
}

/// Joins all documents that share a key, partition by partition, removing each when it is done.
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

/// Documents by batches that fit in memory.
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
