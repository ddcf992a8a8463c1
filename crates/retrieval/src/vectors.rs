//! Vectors of an index's chunks: files of unit vectors, mapped, compared one by one.
//!
//! A segment's vectors are in parts of [`PART`] rows, so that an interrupted run loses little. A part: 8 bytes of magic, 32
//! of the BLAKE3 hash of the rest, rows and dimensions (u32), zeros to 64 bytes, then rows of f32. All is little-endian.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use mmap_guard::FileData;
use rayon::prelude::*;

use crate::approximate::{self, Approximate};
use crate::error::{Error, Result};
use crate::files;
use crate::filter::Condition;
use crate::manifest::{self, EncoderFacts, Manifest, SegmentEntry, VECTORS};
use crate::map;
use crate::products::product;
use crate::progress::{IndexPhase, IndexProgress};
use crate::ranking::{RankedChunk, best, order};
use crate::segment::Segment;

/// First bytes of a part, with the version of the format.
const MAGIC: &[u8; 8] = b"FATHOMV1";
/// Bytes before the rows.
const HEAD_BYTES: usize = 64;
/// Rows of a part, at most.
const PART: usize = 8192;
/// Texts that an encoder is given at once.
const BATCH: usize = 256;
/// Size up to which the hash of all vectors is checked whenever an index is opened.
const CHECKED_BYTES: u64 = 256 << 20;

/// Computes unit vectors of texts; texts longer than the encoder are cut after its last token.
pub trait Encode: Sync {
    /// Its facts.
    fn facts(&self) -> EncoderFacts;

    /// A vector for each text.
    ///
    /// # Errors
    /// Those of the encoder.
    fn encode(&self, texts: &[String]) -> fathom_base::Result<Vec<Vec<f32>>>;
}

/// Vectors of an index's chunks, in its folder or in a store outside.
pub(crate) trait Dense: Send + Sync {
    /// Numbers of a vector.
    fn dimensions(&self) -> usize;

    /// The chunks with the largest product with a vector, the best first.
    ///
    /// # Errors
    /// Those of a store outside.
    fn nearest(&self, query: &NearestQuery<'_>) -> Result<Vec<RankedChunk>>;
}

/// A question to vectors.
pub(crate) struct NearestQuery<'a> {
    pub vector: &'a [f32],
    /// Chunks, at most.
    pub k: usize,
    /// Conditions that their documents fulfil, and the check of all of them.
    pub conditions: &'a [Condition],
    pub fulfils: &'a dyn Fn(u32) -> bool,
    /// Compares with every vector.
    pub exact: bool,
}

/// Adds the vectors that a manifest lacks; returns the number that were computed. Chunks whose text an older manifest has
/// vectors of are not computed again.
pub(crate) fn add(
    out: &Path,
    manifest: &mut Manifest,
    old: Option<&Manifest>,
    (encoder, progress): (&dyn Encode, &(dyn Fn(IndexProgress) + Sync)),
) -> Result<usize> {
    let facts = encoder.facts();
    let (mut done, all) = (0, manifest.segments.iter().map(|entry| entry.chunks).sum());
    let mut computed = 0;
    let mut reusable = None;
    for entry in &mut manifest.segments {
        let of = format!("fathom vectors\n{}\n{}\n", entry.name, facts.fingerprint);
        let name = blake3::hash(of.as_bytes()).to_hex().to_string();
        let known = entry.vectors.as_deref() == Some(&name);
        entry.vectors = Some(name.clone());
        let parts = (entry.chunks as usize).div_ceil(PART);
        let missing: Vec<usize> = (0..parts)
            .filter(|at| {
                let path = part(out, &name, *at);
                !path.exists() || !known && Part::open(&path, facts.dimensions, true).is_err()
            })
            .collect();
        if missing.is_empty() {
            done += entry.chunks;
            continue;
        }
        let reusable = match &mut reusable {
            Some(reusable) => reusable,
            none => none.insert(reused(out, old, &facts)),
        };
        let segment = Segment::reopen(&manifest::segment(out, &entry.name))?;
        for at in missing {
            let rows = at * PART..((at + 1) * PART).min(segment.chunks());
            computed += write(&part(out, &name, at), (&segment, rows), reusable, encoder)?;
        }
        done += entry.chunks;
        progress(IndexProgress { phase: IndexPhase::Encoding, done, all });
        files::sync(&out.join(VECTORS))?;
    }
    add_approximate(out, manifest, &facts)?;
    Ok(computed)
}

/// Adds the file for approximate search, if there are many vectors.
fn add_approximate(out: &Path, manifest: &mut Manifest, facts: &EncoderFacts) -> Result<()> {
    let rows: u64 = manifest.segments.iter().map(|entry| entry.chunks).sum();
    // A store outside has an approximate index of its own.
    if rows < approximate::FROM_ROWS as u64 || manifest.store.is_some() {
        return Ok(());
    }
    let of: Vec<&str> = manifest.segments.iter().filter_map(|entry| entry.vectors.as_deref()).collect();
    let name = blake3::hash(format!("fathom approximate\n{}", of.join("\n")).as_bytes()).to_hex().to_string();
    let (path, size) = (approximate_path(out, &name), (rows as usize, facts.dimensions));
    if Approximate::open(&path, size, true).is_err() {
        let vectors = Vectors::open(out, facts, &manifest.segments, None)?;
        approximate::write(&path, size, |range| range.flat_map(|row| vectors.row(row as u32)).collect())?;
        files::sync(&out.join(VECTORS))?;
    }
    manifest.approximate = Some(name);
    Ok(())
}

fn approximate_path(out: &Path, name: &str) -> PathBuf {
    out.join(VECTORS).join(format!("{name}.approximate"))
}

fn part(out: &Path, name: &str, at: usize) -> PathBuf {
    out.join(VECTORS).join(format!("{name}.{at}"))
}

/// The text of a chunk that is encoded: title and headings in front of its own.
fn encoded_text(segment: &Segment, chunk: usize) -> String {
    let Some(stored) = segment.chunk(chunk) else { return String::new() };
    let title = segment.document(stored.document as usize).map(|facts| facts.title).unwrap_or_default();
    let lead: Vec<&str> = std::iter::once(title.as_str())
        .chain(stored.headings.iter().map(String::as_str))
        .filter(|it| !it.is_empty())
        .collect();
    if lead.is_empty() { stored.text.to_string() } else { format!("{}\n{}", lead.join(" > "), stored.text) }
}

/// The vectors of a segment, one after the other.
pub(crate) fn rows(out: &Path, entry: &SegmentEntry, dimensions: usize) -> Result<Vec<f32>> {
    let name = entry.vectors.as_deref().unwrap_or_default();
    let mut all = Vec::with_capacity(entry.chunks as usize * dimensions);
    for at in 0..(entry.chunks as usize).div_ceil(PART) {
        all.extend(floats(Part::open(&part(out, name, at), dimensions, true)?.rows()));
    }
    Ok(all)
}

type Key = [u8; 32];

/// Vectors of an older manifest by the hash of their texts.
fn reused(out: &Path, old: Option<&Manifest>, facts: &EncoderFacts) -> HashMap<Key, Vec<f32>> {
    let mut all = HashMap::new();
    let same = |old: &&Manifest| old.encoder.as_ref().is_some_and(|it| it.fingerprint == facts.fingerprint);
    for entry in old.filter(same).iter().flat_map(|old| &old.segments) {
        let Some(name) = &entry.vectors else { continue };
        let Ok(segment) = Segment::open(&manifest::segment(out, &entry.name)) else { continue };
        for at in 0..(entry.chunks as usize).div_ceil(PART) {
            let Ok(part) = Part::open(&part(out, name, at), facts.dimensions, true) else { continue };
            for (row, numbers) in part.rows().chunks_exact(4 * facts.dimensions).enumerate() {
                let key = *blake3::hash(encoded_text(&segment, at * PART + row).as_bytes()).as_bytes();
                all.insert(key, floats(numbers));
            }
        }
    }
    all
}

/// Writes a part; returns the number of vectors that were computed.
fn write(
    path: &Path,
    (segment, rows): (&Segment, std::ops::Range<usize>),
    reusable: &HashMap<Key, Vec<f32>>,
    encoder: &dyn Encode,
) -> Result<usize> {
    let dimensions = encoder.facts().dimensions;
    let texts: Vec<String> = rows.map(|chunk| encoded_text(segment, chunk)).collect();
    let known = |text: &String| reusable.get(blake3::hash(text.as_bytes()).as_bytes()).cloned();
    let mut vectors: Vec<Option<Vec<f32>>> = texts.iter().map(known).collect();
    let open: Vec<usize> = (0..texts.len()).filter(|at| vectors[*at].is_none()).collect();
    for batch in open.chunks(BATCH) {
        let asked: Vec<String> = batch.iter().map(|at| texts[*at].clone()).collect();
        for (at, vector) in batch.iter().zip(encoder.encode(&asked)?) {
            vectors[*at] = Some(vector);
        }
    }
    let mut body = Vec::with_capacity(24 + 4 * dimensions * texts.len());
    body.extend((texts.len() as u32).to_le_bytes());
    body.extend((dimensions as u32).to_le_bytes());
    body.resize(HEAD_BYTES - 40, 0);
    for vector in vectors {
        let vector = vector.filter(|vector| vector.len() == dimensions);
        let vector = vector.ok_or_else(|| {
            Error::Refused(format!("the encoder returned no vector of {dimensions} numbers"))
        })?;
        vector.iter().for_each(|number| body.extend(number.to_le_bytes()));
    }
    files::publish(path, &[MAGIC, blake3::hash(&body).as_bytes(), &body])?;
    Ok(open.len())
}

/// A part of an index's vectors.
struct Part {
    bytes: FileData,
}

impl Part {
    fn open(path: &Path, dimensions: usize, check: bool) -> Result<Part> {
        let bytes = map::open(path)?;
        let number = |at: usize| {
            bytes.get(at..at + 4).and_then(|it| it.try_into().ok()).map_or(0, u32::from_le_bytes) as usize
        };
        let fits = bytes.starts_with(MAGIC)
            && number(44) == dimensions
            && bytes.len() == HEAD_BYTES + 4 * dimensions * number(40);
        if !fits {
            return Err(Error::damaged(path, "it does not have the vectors that the manifest names"));
        }
        if check && blake3::hash(&bytes[40..]).as_bytes() != &bytes[8..40] {
            return Err(Error::damaged(path, "its hash is another one"));
        }
        Ok(Part { bytes })
    }

    fn rows(&self) -> &[u8] {
        &self.bytes[HEAD_BYTES..]
    }
}

/// The vectors of an index.
pub(crate) struct Vectors {
    dimensions: usize,
    /// First chunk of each part.
    parts: Vec<(u32, Part)>,
    approximate: Option<Approximate>,
}

impl Vectors {
    /// Maps the vectors of an index's segments.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub fn open(
        folder: &Path,
        encoder: &EncoderFacts,
        segments: &[SegmentEntry],
        approximate: Option<&str>,
    ) -> Result<Vectors> {
        let rows: u64 = segments.iter().map(|entry| entry.chunks).sum();
        let check = rows * 4 * encoder.dimensions as u64 <= CHECKED_BYTES;
        let mut wanted = Vec::new();
        let mut start = 0u64;
        for entry in segments {
            for at in 0..(entry.chunks as usize).div_ceil(PART) {
                let name = entry.vectors.as_deref().unwrap_or_default();
                let rows = (entry.chunks as usize - at * PART).min(PART);
                wanted.push((start + (at * PART) as u64, rows, part(folder, name, at)));
            }
            start += entry.chunks;
        }
        let open = |(start, rows, path): &(u64, usize, PathBuf)| {
            let part = Part::open(path, encoder.dimensions, check)?;
            if part.rows().len() != rows * 4 * encoder.dimensions {
                return Err(Error::damaged(path, "it does not have the vectors that the manifest names"));
            }
            Ok((*start as u32, part))
        };
        let parts = wanted.par_iter().map(open).collect::<Result<Vec<_>>>()?;
        let size = (rows as usize, encoder.dimensions);
        let approximate =
            approximate.map(|name| Approximate::open(&approximate_path(folder, name), size, check));
        Ok(Vectors { dimensions: encoder.dimensions, parts, approximate: approximate.transpose()? })
    }

    /// The `k` chunks with the largest product with a vector.
    fn best(&self, vector: &[f32], k: usize, exact: bool) -> Vec<RankedChunk> {
        if let Some(approximate) = self.approximate.as_ref().filter(|_| !exact) {
            let product = |row: u32| f64::from(product(self.stored(row), vector));
            return approximate.nearest(vector, k, product);
        }
        let each = |(start, part): &(u32, Part)| best(scores(*start, part.rows(), vector), k);
        let all: Vec<RankedChunk> = self.parts.par_iter().flat_map_iter(each).collect();
        best(all, k)
    }

    /// The stored row of a chunk.
    fn stored(&self, chunk: u32) -> &[u8] {
        let at = self.parts.partition_point(|(start, _)| *start <= chunk).saturating_sub(1);
        let size = 4 * self.dimensions;
        let row = self.parts.get(at).and_then(|(start, part)| {
            let row = (chunk - start) as usize;
            part.rows().get(row * size..(row + 1) * size)
        });
        row.unwrap_or_default()
    }

    /// The vector of a chunk.
    fn row(&self, chunk: u32) -> Vec<f32> {
        floats(self.stored(chunk))
    }

    /// All chunks with their product with a vector.
    fn all(&self, vector: &[f32]) -> Vec<RankedChunk> {
        self.parts.par_iter().flat_map_iter(|(start, part)| scores(*start, part.rows(), vector)).collect()
    }
}

impl Dense for Vectors {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn nearest(&self, query: &NearestQuery<'_>) -> Result<Vec<RankedChunk>> {
        let NearestQuery { vector, k, .. } = *query;
        if query.conditions.is_empty() {
            return Ok(self.best(vector, k, query.exact));
        }
        // A filter may leave few of the nearest; all are compared.
        let mut all = self.all(vector);
        all.sort_unstable_by(order);
        Ok(all.into_iter().filter(|(chunk, _)| (query.fulfils)(*chunk)).take(k).collect())
    }
}

fn scores(start: u32, rows: &[u8], vector: &[f32]) -> Vec<RankedChunk> {
    let rows = rows.chunks_exact(4 * vector.len());
    (start..).zip(rows).map(|(chunk, row)| (chunk, f64::from(product(row, vector)))).collect()
}

fn floats(row: &[u8]) -> Vec<f32> {
    row.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
