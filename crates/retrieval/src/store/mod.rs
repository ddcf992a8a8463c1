//! Stores of vectors outside the folder of an index: Qdrant, and PostgreSQL with pgvector.
//!
//! The folder keeps the passages, BM25 and the vectors that were computed; a store is a copy of the vectors that searches
//! ask. Its points are named by the segment that they are of, and a segment by what it is made from, so that an update
//! writes the segments that the store lacks and removes those that the index no longer has: before and after the manifest
//! is published, so that a search in between, and a run after a kill, find every passage of the manifest. A point that is
//! not in the manifest is skipped.

mod fields;
mod postgres;
mod qdrant;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::str::FromStr;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::filter::Condition;
use crate::manifest::{self, EncoderFacts, Manifest, SegmentEntry};
use crate::progress::{IndexPhase, IndexProgress};
use crate::ranking::{RankedChunk, order};
use crate::segment::Segment;
use crate::vectors::{Dense, NearestQuery, rows};

/// Points that a store is given at once.
const BATCH: usize = 256;

/// Kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Qdrant,
    Postgres,
}

/// Address of a store: `qdrant://HOST:PORT/COLLECTION`, `qdrants://..` over TLS, or
/// `postgres://USER@HOST:PORT/DATABASE?table=NAME`. It has no secrets: keys come from `QDRANT_API_KEY` and `PGPASSWORD`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreAddress {
    text: String,
    backend: Backend,
    /// The collection or table.
    collection: String,
    url: url::Url,
}

impl FromStr for StoreAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<StoreAddress> {
        let refused = |why: &str| {
            let forms = "qdrant://HOST:PORT/COLLECTION, qdrants://.. over TLS, postgres://USER@HOST:PORT/DATABASE?table=NAME";
            Error::Refused(format!("`{text}` is no address of a store: {why}; known are {forms}"))
        };
        let url = url::Url::parse(text).map_err(|error| refused(&error.to_string()))?;
        if url.password().is_some() {
            return Err(Error::Refused(
                "the address of a store is written to the index and must not have a password; set PGPASSWORD or QDRANT_API_KEY".into(),
            ));
        }
        let is_host = url.host_str().is_some_and(|host| !host.is_empty());
        let path = url.path().trim_matches('/').to_string();
        let (backend, collection) = match url.scheme() {
            "qdrant" | "qdrants" => (Backend::Qdrant, path),
            "postgres" | "postgresql" => {
                let table =
                    url.query_pairs().find(|(key, _)| key == "table").map(|(_, name)| name.into_owned());
                (Backend::Postgres, table.unwrap_or_else(|| "fathom".into()))
            }
            other => return Err(refused(&format!("`{other}` is another scheme"))),
        };
        let is_name = |name: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            (1..=48).contains(&name.len()) && name.chars().all(allowed)
        };
        if !is_host && backend == Backend::Qdrant {
            return Err(refused("it names no host"));
        }
        if !is_name(&collection) {
            return Err(refused("a collection has a name of 1 to 48 letters, digits, `_` and `-`"));
        }
        Ok(StoreAddress { text: text.into(), backend, collection, url })
    }
}

impl TryFrom<String> for StoreAddress {
    type Error = Error;

    fn try_from(text: String) -> Result<StoreAddress> {
        text.parse()
    }
}

impl From<StoreAddress> for String {
    fn from(address: StoreAddress) -> String {
        address.text
    }
}

impl std::fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl StoreAddress {
    /// An error that names the store.
    fn error(&self, why: impl std::fmt::Display) -> Error {
        Error::Store { store: self.text.clone(), why: why.to_string() }
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> Error {
        self.error(format!("it cannot be reached: {why}"))
    }

    fn of_others(&self) -> Error {
        self.error("it has points that are not of an index; name another collection")
    }

    fn missing(&self) -> Error {
        self.error("it does not exist; `fathom index` writes it")
    }

    fn check_dimensions(&self, there: usize, own: usize) -> Result<()> {
        if there == own {
            return Ok(());
        }
        Err(self.error(format!(
            "its vectors have {there} numbers, and those of the encoder {own}; name another collection, or delete it"
        )))
    }

    fn open(&self) -> Result<Box<dyn VectorStore>> {
        Ok(match self.backend {
            Backend::Qdrant => Box::new(qdrant::Qdrant::new(self.clone())?),
            Backend::Postgres => Box::new(postgres::Postgres::connect(self.clone())?),
        })
    }
}

/// The store of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreEntry {
    /// Its address.
    pub address: StoreAddress,
    /// Name of the index in the store: the hash of the place where it was first written.
    pub owner: String,
}

impl StoreEntry {
    /// The store that an index is given, or had.
    pub fn of(out: &Path, asked: Option<&StoreAddress>, old: Option<&Manifest>) -> Option<StoreEntry> {
        let had = old.and_then(|old| old.store.clone());
        let Some(address) = asked else { return had };
        let place = std::fs::canonicalize(out).unwrap_or_else(|_| out.to_path_buf());
        let hash = || blake3::hash(place.to_string_lossy().as_bytes()).to_hex()[..16].to_string();
        Some(StoreEntry { address: address.clone(), owner: had.map_or_else(hash, |had| had.owner) })
    }

    /// Name of a segment's points.
    fn segment(&self, encoder: &EncoderFacts, vectors: &str) -> String {
        format!("{}/{}/{vectors}", self.owner, encoder.fingerprint)
    }
}

/// A point of a store: a chunk with its vector.
struct Point<'a> {
    segment: &'a str,
    /// Number of the chunk in its segment.
    chunk: u32,
    vector: &'a [f32],
    /// Fields of its document as texts, and those of them that are numbers.
    texts: Map<String, Value>,
    numbers: Map<String, Value>,
}

impl Point<'_> {
    /// Its name: a UUID of what it is of.
    fn id(&self) -> String {
        let hash = blake3::hash(format!("{}\n{}", self.segment, self.chunk).as_bytes()).to_hex();
        let part = |range: std::ops::Range<usize>| &hash[range];
        format!("{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32))
    }
}

/// A point that a store found: its segment, its chunk there, and its score.
type Found = (String, u32, f64);

/// A store of unit vectors; scores are cosines.
trait VectorStore: Send {
    /// Makes the collection for vectors of this size, unless it exists.
    fn prepare(&mut self, dimensions: usize) -> Result<()>;

    /// Number of points of each segment.
    fn segments(&mut self) -> Result<BTreeMap<String, u64>>;

    /// Writes points, over those of the same name.
    fn put(&mut self, points: &[Point<'_>]) -> Result<()>;

    /// Removes the points of segments.
    fn remove(&mut self, segments: &[&str]) -> Result<()>;

    /// Prepares for searches in this many points.
    fn finish(&mut self, points: u64, dimensions: usize) -> Result<()>;

    /// The nearest `k` points, the best first, among those that fulfil the conditions that the store can compute.
    fn nearest(
        &mut self,
        vector: &[f32],
        k: usize,
        conditions: &[Condition],
        exact: bool,
    ) -> Result<Vec<Found>>;
}

/// Segments of a manifest as a store names them, with their chunks.
fn wanted<'a>(manifest: &'a Manifest, entry: &StoreEntry) -> Vec<(String, &'a SegmentEntry)> {
    let Some(encoder) = &manifest.encoder else { return Vec::new() };
    let named = |it: &'a SegmentEntry| Some((entry.segment(encoder, it.vectors.as_deref()?), it));
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
    let mut store = entry.address.open()?;
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
        let mut store = self.address.open()?;
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

    fn ask(&self, query: &NearestQuery<'_>, k: usize, exact: bool) -> Result<Vec<Found>> {
        let mut held = self.store.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A connection may have ended since the last question; a second one is opened once.
        if let Some(store) = held.as_mut()
            && let Ok(found) = store.nearest(query.vector, k, query.conditions, exact)
        {
            return Ok(found);
        }
        let store = held.insert(self.open()?);
        store.nearest(query.vector, k, query.conditions, exact)
    }
}

impl Dense for StoredVectors {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn nearest(&self, query: &NearestQuery<'_>) -> Result<Vec<RankedChunk>> {
        let chunk = |(segment, chunk, score): &Found| {
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
