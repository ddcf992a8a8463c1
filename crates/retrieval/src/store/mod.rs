//! Stores of vectors outside the folder of an index: Qdrant, and PostgreSQL with pgvector.
//!
//! The folder keeps the passages, BM25 and the vectors that were computed; a store is a copy of the vectors that searches
//! ask. Its points are named by the segment that they are of, and a segment by what it is made from, so that an update
//! writes the segments that the store lacks and removes those that the index no longer has: before and after the manifest
//! is published, so that a search in between, and a run after a kill, find every passage of the manifest. A point that is
//! not in the manifest is skipped.

pub(crate) mod address;
mod backend;
mod fields;
mod postgres;
mod qdrant;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::manifest::{self, Manifest, SegmentEntry};
use crate::progress::{IndexPhase, IndexProgress};
use crate::ranking::{RankedChunk, order};
use crate::segment::Segment;
use crate::vectors::{Dense, NearestQuery, rows};

use address::{Backend, StoreEntry};
use backend::{Point, ScoredPoint, StoreQuery, VectorStore};

pub use address::StoreAddress;

/// Points that a store is given at once.
const BATCH: usize = 256;

/// Opens the store of an address.
fn open(address: &StoreAddress) -> Result<Box<dyn VectorStore>> {
    Ok(match address.backend {
        Backend::Qdrant => Box::new(qdrant::Qdrant::new(address.clone())?),
        Backend::Postgres => Box::new(postgres::Postgres::connect(address.clone())?),
    })
}

/// Segments of a manifest as a store names them, with their chunks.
fn wanted<'a>(manifest: &'a Manifest, entry: &StoreEntry) -> Vec<(String, &'a SegmentEntry)> {
    let Some(encoder) = &manifest.encoder else { return Vec::new() };
    let named =
        |it: &'a SegmentEntry| Some((entry.segment(&encoder.fingerprint, it.vectors.as_deref()?), it));
    manifest.segments.iter().filter(|it| it.chunks > 0).filter_map(named).collect()
}

/// Writes the segments that a manifest's store lacks; returns a store from which [`Update::end`] removes the others.
///
/// # Errors
/// The store cannot be reached; it has vectors of others, of another encoder or of another size.
pub(crate) fn update(
    out: &Path,
    manifest: &Manifest,
    progress: &(dyn Fn(IndexProgress) + Sync),
) -> Result<Option<Update>> {
    let Some(entry) = &manifest.store else { return Ok(None) };
    let Some(encoder) = &manifest.encoder else {
        return Err(Error::Refused("a store holds vectors; name their encoder (--encoder DIR)".into()));
    };
    let mut store = open(&entry.address)?;
    store.prepare(encoder.dimensions)?;
    let held = store.segments()?;
    for name in held.keys() {
        let mut parts = name.splitn(3, '/');
        let (owner, fingerprint) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if owner != entry.owner {
            let why = format!(
                "it has the vectors of another index ({owner}); name another collection, or delete it"
            );
            return Err(entry.address.error(why));
        }
        if fingerprint != encoder.fingerprint {
            let why = format!(
                "its vectors are of another encoder than {}; name another collection, or delete it",
                encoder.name
            );
            return Err(entry.address.error(why));
        }
    }
    let wanted = wanted(manifest, entry);
    let all = wanted.iter().map(|(_, it)| it.chunks).sum();
    let (mut done, mut written) = (0, 0);
    for (name, it) in &wanted {
        if held.get(name) != Some(&it.chunks) {
            put(out, it, (name, encoder.dimensions), store.as_mut())?;
            written += it.chunks;
        }
        done += it.chunks;
        progress(IndexProgress { phase: IndexPhase::Storing, done, all });
    }
    if written > 0 {
        store.finish(all, encoder.dimensions)?;
    }
    let is_wanted = |name: &String| wanted.iter().any(|(own, _)| own == name);
    let stale = held.into_keys().filter(|name| !is_wanted(name)).collect();
    Ok(Some(Update { store, stale, written }))
}

/// Writes the points of a segment.
fn put(
    out: &Path,
    entry: &SegmentEntry,
    (name, dimensions): (&str, usize),
    store: &mut dyn VectorStore,
) -> Result<()> {
    let segment = Segment::reopen(&manifest::segment(out, &entry.name))?;
    let mut points = Vec::with_capacity(BATCH);
    let vectors = rows(out, entry, dimensions)?;
    for (at, vector) in vectors.chunks_exact(dimensions).enumerate() {
        let facts = segment
            .document(segment.document_of(at))
            .ok_or_else(|| Error::damaged(&manifest::segment(out, &entry.name), "a document is missing"))?;
        let (texts, numbers) = fields::of(&facts);
        points.push(Point { segment: name, chunk: at as u32, vector, texts, numbers });
        if points.len() == BATCH {
            store.put(&points)?;
            points.clear();
        }
    }
    if points.is_empty() { Ok(()) } else { store.put(&points) }
}

/// A store to which the segments of a manifest were written.
pub(crate) struct Update {
    store: Box<dyn VectorStore>,
    stale: Vec<String>,
    /// Points that were written.
    pub written: u64,
}

impl Update {
    /// Removes segments that the manifest does not have.
    pub fn end(mut self) -> Result<()> {
        let stale: Vec<&str> = self.stale.iter().map(String::as_str).collect();
        if stale.is_empty() { Ok(()) } else { self.store.remove(&stale) }
    }
}

/// The vectors of an index in its store, which is opened by the first question, so that BM25 works without it.
pub(crate) struct StoredVectors {
    address: StoreAddress,
    dimensions: usize,
    /// First chunk and chunks of each segment.
    segments: HashMap<String, (u32, u64)>,
    store: Mutex<Option<Box<dyn VectorStore>>>,
}

impl StoredVectors {
    pub fn new(manifest: &Manifest, entry: &StoreEntry, dimensions: usize) -> StoredVectors {
        let mut start = 0;
        let mut segments = HashMap::new();
        for (name, it) in wanted(manifest, entry) {
            segments.insert(name, (start, it.chunks));
            start += it.chunks as u32;
        }
        StoredVectors { address: entry.address.clone(), dimensions, segments, store: Mutex::default() }
    }

    /// Opens the store, which has to have every segment.
    fn open(&self) -> Result<Box<dyn VectorStore>> {
        let mut store = open(&self.address)?;
        let held = store.segments()?;
        let lacks =
            self.segments.iter().filter(|(name, (_, chunks))| held.get(*name) != Some(chunks)).count();
        if lacks > 0 {
            let all = self.segments.len();
            return Err(self.address.error(format!(
                "it lacks the vectors of {lacks} of {all} segments; `fathom index` writes them again"
            )));
        }
        Ok(store)
    }

    fn ask(&self, query: &NearestQuery<'_>, k: usize, exact: bool) -> Result<Vec<ScoredPoint>> {
        let question = StoreQuery { vector: query.vector, k, conditions: query.conditions, exact };
        let mut held = self.store.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A connection may have ended since the last question; a second one is opened once.
        if let Some(store) = held.as_mut()
            && let Ok(found) = store.nearest(&question)
        {
            return Ok(found);
        }
        let store = held.insert(self.open()?);
        store.nearest(&question)
    }
}

impl Dense for StoredVectors {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn nearest(&self, query: &NearestQuery<'_>) -> Result<Vec<RankedChunk>> {
        let chunk = |(segment, chunk, score): &ScoredPoint| {
            let (start, chunks) = self.segments.get(segment)?;
            (u64::from(*chunk) < *chunks).then_some((start + chunk, *score))
        };
        // A filter may leave few of the nearest; all are compared.
        let mut exact = query.exact || !query.conditions.is_empty();
        let mut most = query.k;
        loop {
            let found = self.ask(query, most, exact)?;
            let is_whole = found.len() < most;
            let mut known: Vec<RankedChunk> =
                found.iter().filter_map(chunk).filter(|(chunk, _)| (query.fulfils)(*chunk)).collect();
            if known.len() >= query.k || is_whole && exact {
                known.sort_unstable_by(order);
                known.truncate(query.k);
                return Ok(known);
            }
            if is_whole { exact = true } else { most *= 4 }
        }
    }
}
