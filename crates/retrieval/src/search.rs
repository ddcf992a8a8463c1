//! Questions to an index: BM25, vectors, both fused; filters; near-duplicates left out.
//!
//! BM25 (Robertson, Zaragoza 2009, with Lucene's idf that is never negative): a term's weight in a chunk is
//! `ln(1 + (N - n + 0.5) / (n + 0.5)) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean length))`, with k1 = 1.2 and
//! b = 0.75; `N` chunks, `n` of them with the term. A term that the query repeats counts as often. Sums are in f64, in the
//! order of the query's terms, so that scores are the same on every machine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::filter::Condition;
use crate::manifest::{self, EncoderFacts, Manifest, NAME};
use crate::ranking::{RankedChunk, best, fused, order};
use crate::read::Kind;
use crate::segment::{DocumentFacts, Segment};
use crate::store::StoredVectors;
use crate::terms::terms;
use crate::vectors::{Dense, NearestQuery, Vectors};

const K1: f64 = 1.2;
const B: f64 = 0.75;
/// Candidates of each list of a fusion, per hit that is wanted, and at least.
const CANDIDATES: (usize, usize) = (10, 100);

/// An opened index.
pub struct Index {
    folder: PathBuf,
    manifest: Manifest,
    segments: Vec<Segment>,
    /// First chunk of each segment, and the number of chunks.
    starts: Vec<u32>,
    terms: u64,
    vectors: Option<Box<dyn Dense>>,
    /// Originals of near-duplicate chunks.
    originals: HashMap<u32, u32>,
}

/// A passage that answers a query.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Hit {
    /// Rank, from 1.
    pub rank: usize,
    /// Score of the ranking that was asked for.
    pub score: f64,
    /// Path of its file.
    pub path: String,
    /// Name of its document, if it has one of its own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Title of its document.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Headings that it stands under.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headings: Vec<String>,
    /// First and last line, from 1; none in a PDF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<[u32; 2]>,
    /// Its bytes in the file; the whole file where its text was extracted.
    pub bytes: [u64; 2],
    /// Its page, from 1, in a PDF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<u32>,
    /// Its text.
    pub text: String,
    /// Fields of its document.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Places of near-duplicates that were left out: `path:line`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Number of the chunk in the index.
    pub chunk: u32,
}

impl Hit {
    /// Its place, as compilers print it: `path:line`, or `path, page 3`.
    pub fn place(&self) -> String {
        match (self.page, self.lines) {
            (Some(page), _) => format!("{}, page {page}", self.path),
            (None, Some([line, _])) => format!("{}:{line}", self.path),
            (None, None) => self.path.clone(),
        }
    }
}

/// Ranking of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// BM25 and vectors fused where there are vectors and an encoder, otherwise BM25.
    #[default]
    Auto,
    /// BM25 alone.
    Sparse,
    /// Vectors alone.
    Dense,
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Mode, String> {
        match name {
            "auto" => Ok(Mode::Auto),
            "bm25" => Ok(Mode::Sparse),
            "dense" => Ok(Mode::Dense),
            other => Err(format!("\"{other}\"; \"auto\", \"bm25\" and \"dense\" are there")),
        }
    }
}

/// A query.
#[derive(Clone, Debug, Default)]
pub struct Query<'a> {
    /// Its text.
    pub text: &'a str,
    /// Its vector, if the index has vectors.
    pub vector: Option<&'a [f32]>,
    /// Hits, at most.
    pub k: usize,
    /// Conditions that a hit's document fulfils.
    pub conditions: &'a [Condition],
    /// Ranking.
    pub mode: Mode,
    /// Compares the query with every vector, even if there is an approximate index.
    pub exact: bool,
}

impl Index {
    /// Opens an index and checks the hashes of its files.
    ///
    /// # Errors
    /// Not an index; a damaged file.
    pub fn open(folder: &Path) -> Result<Index> {
        let missing = |why: &str| Error::NotAnIndex { path: folder.to_path_buf(), why: why.into() };
        if !folder.is_dir() {
            return Err(missing("there is no such folder"));
        }
        let mut manifest =
            Manifest::read(folder)?.ok_or_else(|| missing(&format!("it has no file `{NAME}`")))?;
        loop {
            match Index::of(folder, manifest.clone()) {
                Ok(index) => return Ok(index),
                Err(error) => {
                    // Another process may have published a new manifest and removed the files of the old one.
                    let newer = Manifest::read(folder)?.filter(|newer| *newer != manifest);
                    manifest = newer.ok_or(error)?;
                }
            }
        }
    }

    fn of(folder: &Path, manifest: Manifest) -> Result<Index> {
        let open = |entry: &manifest::SegmentEntry| {
            let path = manifest::segment(folder, &entry.name);
            let segment = Segment::open(&path)?;
            if (segment.chunks() as u64, segment.terms()) != (entry.chunks, entry.terms) {
                return Err(Error::damaged(&path, "it is not the segment that the manifest names"));
            }
            Ok(segment)
        };
        let segments = manifest.segments.par_iter().map(open).collect::<Result<Vec<Segment>>>()?;
        let mut starts = vec![0u32];
        for segment in &segments {
            starts.push(starts[starts.len() - 1] + segment.chunks() as u32);
        }
        let vectors: Option<Box<dyn Dense>> = match (&manifest.encoder, &manifest.store) {
            (Some(encoder), Some(store)) => {
                Some(Box::new(StoredVectors::new(&manifest, store, encoder.dimensions)))
            }
            (Some(encoder), None) => {
                let approximate = manifest.approximate.as_deref();
                Some(Box::new(Vectors::open(folder, encoder, &manifest.segments, approximate)?))
            }
            (None, _) => None,
        };
        Ok(Index {
            folder: folder.to_path_buf(),
            terms: segments.iter().map(Segment::terms).sum(),
            originals: manifest.duplicates.iter().copied().collect(),
            segments,
            starts,
            vectors,
            manifest,
        })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The encoder of its vectors, if it has vectors.
    pub fn encoder(&self) -> Option<&EncoderFacts> {
        self.manifest.encoder.as_ref()
    }

    /// Chunks by BM25, at most `k` that fulfil the conditions, the best first.
    pub fn sparse(&self, query: &str, k: usize, conditions: &[Condition]) -> Vec<RankedChunk> {
        let (mut asked, mut known): (Vec<(String, f64)>, HashMap<String, usize>) = Default::default();
        terms(query, |term| match known.get(term) {
            Some(at) => asked[*at].1 += 1.0,
            None => {
                known.insert(term.to_string(), asked.len());
                asked.push((term.to_string(), 1.0));
            }
        });
        let chunks = f64::from(self.chunks());
        let mean = (self.terms as f64 / chunks.max(1.0)).max(1.0);
        let weigh = |(term, times): &(String, f64)| {
            let with: u32 =
                self.segments.iter().filter_map(|segment| segment.postings(term)).map(|it| it.chunks).sum();
            let with = f64::from(with);
            times * (1.0 + (chunks - with + 0.5) / (with + 0.5)).ln()
        };
        let weights: Vec<f64> = asked.iter().map(weigh).collect();
        let of_segment = |(segment, start): (&Segment, &u32)| {
            let mut sums = vec![0.0; segment.chunks()];
            let mut touched = Vec::new();
            for ((term, _), weight) in asked.iter().zip(&weights) {
                for (chunk, count) in segment.postings(term).into_iter().flatten() {
                    let sum = &mut sums[chunk as usize];
                    if *sum == 0.0 {
                        touched.push(chunk);
                    }
                    let (tf, length) = (f64::from(count), f64::from(segment.terms_of(chunk as usize)));
                    *sum += weight * tf * (K1 + 1.0) / (tf + K1 * (1.0 - B + B * length / mean));
                }
            }
            touched
                .into_iter()
                .map(|chunk| (start + chunk, sums[chunk as usize]))
                .collect::<Vec<RankedChunk>>()
        };
        let all: Vec<RankedChunk> = self.segments.iter().zip(&self.starts).flat_map(of_segment).collect();
        self.filtered(all, k, conditions)
    }

    /// The best `k` that fulfil the conditions.
    fn filtered(&self, mut all: Vec<RankedChunk>, k: usize, conditions: &[Condition]) -> Vec<RankedChunk> {
        if conditions.is_empty() {
            return best(all, k);
        }
        all.sort_unstable_by(order);
        let mut known = HashMap::new();
        all.retain(|(chunk, _)| self.fulfils(*chunk, conditions, &mut known));
        all.truncate(k);
        all
    }

    fn fulfils(
        &self,
        chunk: u32,
        conditions: &[Condition],
        known: &mut HashMap<(usize, usize), bool>,
    ) -> bool {
        let (at, own) = self.place(chunk);
        let document = self.segments[at].document_of(own);
        *known.entry((at, document)).or_insert_with(|| {
            let facts = self.segments[at].document(document);
            facts.is_some_and(|facts| conditions.iter().all(|condition| condition.holds(&facts)))
        })
    }

    /// Chunks by the cosine of their vectors with a unit vector, at most `k` that fulfil the conditions, the best first.
    ///
    /// # Errors
    /// The index has no vectors, or vectors of another size; its store outside cannot be reached.
    pub fn dense(
        &self,
        vector: &[f32],
        k: usize,
        conditions: &[Condition],
        exact: bool,
    ) -> Result<Vec<RankedChunk>> {
        let refused = |why: String| Error::Encoder { path: self.folder.clone(), why };
        let Some(vectors) = &self.vectors else {
            return Err(refused(
                "it has no vectors; `fathom index PATHS.. OUT --encoder DIR` adds them".into(),
            ));
        };
        if vectors.dimensions() != vector.len() {
            let (own, asked) = (vectors.dimensions(), vector.len());
            return Err(refused(format!("its vectors have {own} numbers, and that of the query {asked}")));
        }
        let known = RefCell::default();
        let fulfils =
            |chunk: u32| conditions.is_empty() || self.fulfils(chunk, conditions, &mut known.borrow_mut());
        vectors.nearest(&NearestQuery { vector, k, conditions, fulfils: &fulfils, exact })
    }

    /// Answers a query: hits without near-duplicates of better ones.
    ///
    /// # Errors
    /// Those of [`ranked`](Index::ranked); a damaged index.
    pub fn search(&self, query: &Query<'_>) -> Result<Vec<Hit>> {
        self.hits(&self.ranked(query)?, query.k)
    }

    /// Chunks that answer a query, the best first: more than the hits that are wanted, since near-duplicates are left out.
    ///
    /// # Errors
    /// Those of [`dense`](Index::dense); vectors alone are asked for without a vector.
    pub fn ranked(&self, query: &Query<'_>) -> Result<Vec<RankedChunk>> {
        let most = (query.k * CANDIDATES.0).max(CANDIDATES.1);
        let sparse = || self.sparse(query.text, most, query.conditions);
        let dense = |vector| self.dense(vector, most, query.conditions, query.exact);
        match (query.mode, query.vector) {
            (Mode::Sparse, _) | (Mode::Auto, None) => Ok(sparse()),
            (Mode::Auto, Some(vector)) => Ok(fused(&[sparse(), dense(vector)?], most)),
            (Mode::Dense, Some(vector)) => dense(vector),
            (Mode::Dense, None) => {
                let why = "a search by vectors needs its encoder (--encoder DIR)".into();
                Err(Error::Encoder { path: self.folder.clone(), why })
            }
        }
    }

    /// The first `k` hits of a ranking, without near-duplicates of better ones, whose places are listed with them.
    ///
    /// # Errors
    /// A damaged index.
    pub fn hits(&self, ranked: &[RankedChunk], k: usize) -> Result<Vec<Hit>> {
        let mut hits: Vec<Hit> = Vec::new();
        let mut by_original: HashMap<u32, usize> = HashMap::new();
        for (chunk, score) in ranked {
            let original = self.originals.get(chunk).unwrap_or(chunk);
            match by_original.get(original) {
                Some(at) => {
                    let place = self.hit(*chunk, *score)?.place();
                    hits[*at].also.push(place);
                }
                None if hits.len() < k => {
                    by_original.insert(*original, hits.len());
                    hits.push(Hit { rank: hits.len() + 1, ..self.hit(*chunk, *score)? });
                }
                None => {}
            }
        }
        Ok(hits)
    }

    /// A chunk as a hit.
    ///
    /// # Errors
    /// A damaged index.
    pub fn hit(&self, chunk: u32, score: f64) -> Result<Hit> {
        let (at, own) = self.place(chunk);
        let damaged = || {
            Error::damaged(
                &manifest::segment(&self.folder, &self.manifest.segments[at].name),
                "a chunk is missing",
            )
        };
        let stored = self.segments[at].chunk(own).ok_or_else(damaged)?;
        let facts = self.segments[at].document(stored.document as usize).ok_or_else(damaged)?;
        let DocumentFacts { path, kind, id, title, metadata } = facts;
        Ok(Hit {
            rank: 0,
            score,
            path,
            id,
            title,
            headings: stored.headings,
            lines: Some(stored.lines).filter(|_| kind != Kind::Pdf),
            bytes: stored.bytes,
            page: stored.page,
            text: stored.text.to_string(),
            metadata,
            also: Vec::new(),
            chunk,
        })
    }

    /// Segment of a chunk, and its number there.
    fn place(&self, chunk: u32) -> (usize, usize) {
        let at = self
            .starts
            .partition_point(|start| *start <= chunk)
            .saturating_sub(1)
            .min(self.segments.len().saturating_sub(1));
        (at, (chunk - self.starts[at]) as usize)
    }
}
