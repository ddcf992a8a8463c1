//! Approximate search of many vectors: an inverted file (Jegou, Douze, Schmid 2011) over rows of 8-bit numbers, whose best
//! candidates are compared exactly.
//!
//! Rows are dealt to the nearest of some centroids; a query reads the lists of the nearest centroids only. The crates at
//! hand keep graphs (HNSW) in memory or in a database of their own, and none writes the same bytes twice; this is one
//! immutable file that is mapped.
//!
//! The file: 8 bytes of magic, 32 of the BLAKE3 hash of the rest; dimensions, rows, lists (u32); zeros to 64 bytes; the
//! centroids (f32); the first entry of each list and the number of entries (u32); of each entry its row (u32), then its
//! scale (f32), then its numbers (i8). All is little-endian.

use std::path::Path;

use fearless_simd::{Level, Simd, SimdBase, dispatch, f32x16};
use mmap_guard::FileData;
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::products::product;
use crate::ranking::{RankedChunk, best};
use crate::{files, map};

const MAGIC: &[u8; 8] = b"FATHOMA1";
const HEAD_BYTES: usize = 64;
/// Rows from which an index has this file: fewer are compared one by one within some tens of milliseconds.
pub(crate) const FROM_ROWS: usize = 200_000;
/// Rows of a list, about.
const LIST_ROWS: usize = 512;
/// Rows per centroid by which centroids are fitted, and rounds of Lloyd's algorithm.
const SAMPLE: usize = 32;
const ROUNDS: usize = 6;
/// Share of the lists that a query reads, and lists at least.
const PROBED: (f64, usize) = (1.0 / 32.0, 64);
/// Candidates that are compared exactly, per row that is wanted, and at least.
const CANDIDATES: (usize, usize) = (10, 100);
/// Numbers of a vector of the processor.
const LANES: usize = 16;

/// Index of the nearest of `centroids` for each row, by the largest product; ties go to the first.
fn nearest(rows: &[f32], centroids: &[f32], dimensions: usize) -> Vec<u32> {
    let blocks: Vec<Vec<u32>> = rows
        .par_chunks(256 * dimensions)
        .map(|rows| dispatch!(Level::new(), simd => nearest_of(simd, rows, centroids, dimensions)))
        .collect();
    blocks.concat()
}

/// [`nearest`] of some rows; four rows share each load of a centroid.
#[inline(always)]
fn nearest_of<S: Simd>(simd: S, rows: &[f32], centroids: &[f32], dimensions: usize) -> Vec<u32> {
    let mut found = Vec::with_capacity(rows.len() / dimensions);
    for four in rows.chunks(4 * dimensions) {
        let count = four.len() / dimensions;
        let row = |at: usize| &four[at.min(count - 1) * dimensions..][..dimensions];
        let mut most = [(f32::NEG_INFINITY, 0u32); 4];
        for (at, centroid) in (0u32..).zip(centroids.chunks_exact(dimensions)) {
            let products = products(simd, std::array::from_fn(row), centroid);
            for (most, product) in most.iter_mut().zip(products) {
                if product > most.0 {
                    *most = (product, at);
                }
            }
        }
        found.extend(most.iter().take(count).map(|(_, at)| *at));
    }
    found
}

/// Products of four rows with a vector. Lanes are added in one order, without fused operations, so that the result is the
/// same on every processor.
#[inline(always)]
fn products<S: Simd>(simd: S, rows: [&[f32]; 4], vector: &[f32]) -> [f32; 4] {
    let whole = vector.len() / LANES * LANES;
    let mut sums = [f32x16::splat(simd, 0.0); 4];
    for at in (0..whole).step_by(LANES) {
        let own = f32x16::from_slice(simd, &vector[at..at + LANES]);
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum += f32x16::from_slice(simd, &row[at..at + LANES]) * own;
        }
    }
    std::array::from_fn(|at| {
        let mut lanes = [0.0f32; LANES];
        sums[at].store_slice(&mut lanes);
        let rest: f32 = rows[at][whole..].iter().zip(&vector[whole..]).map(|(a, b)| a * b).sum();
        lanes.iter().sum::<f32>() + rest
    })
}

/// Centroids of rows by Lloyd's algorithm on a sample, of unit length. The start is the sample's own rows, evenly spaced.
fn centroids(sample: &[f32], lists: usize, dimensions: usize) -> Vec<f32> {
    let rows = sample.len() / dimensions;
    let row = |at: usize| &sample[at * dimensions..(at + 1) * dimensions];
    let mut centroids: Vec<f32> = (0..lists).flat_map(|list| row(list * rows / lists).to_vec()).collect();
    for _ in 0..ROUNDS {
        let of = nearest(sample, &centroids, dimensions);
        let mut sums = vec![0.0f64; lists * dimensions];
        for (at, list) in of.iter().enumerate() {
            let sum = &mut sums[*list as usize * dimensions..][..dimensions];
            sum.iter_mut().zip(row(at)).for_each(|(sum, number)| *sum += f64::from(*number));
        }
        for (centroid, sum) in centroids.chunks_exact_mut(dimensions).zip(sums.chunks_exact(dimensions)) {
            let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
            // A centroid without rows stays where it is.
            if length > 0.0 {
                centroid.iter_mut().zip(sum).for_each(|(own, sum)| *own = (sum / length) as f32);
            }
        }
    }
    centroids
}

/// A row as 8-bit numbers with their scale.
fn rounded(row: &[f32]) -> (f32, Vec<i8>) {
    let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = if most > 0.0 { most / 127.0 } else { 1.0 };
    (scale, row.iter().map(|x| (x / scale).round() as i8).collect())
}

/// Writes the file for rows that `read` returns by their range.
///
/// # Errors
/// Errors of the system.
pub(crate) fn write(
    path: &Path,
    (rows, dimensions): (usize, usize),
    read: impl Fn(std::ops::Range<usize>) -> Vec<f32>,
) -> Result<()> {
    let lists = (rows / LIST_ROWS).clamp(1, 1 << 16);
    let wanted = (SAMPLE * lists).min(rows);
    let sample: Vec<f32> = (0..wanted)
        .flat_map(|at| {
            let row = at * rows / wanted;
            read(row..row + 1)
        })
        .collect();
    let centroids = centroids(&sample, lists, dimensions);
    let (mut of, mut scales, mut codes) =
        (Vec::with_capacity(rows), Vec::with_capacity(rows), Vec::with_capacity(rows));
    let step = 1 << 14;
    for start in (0..rows).step_by(step) {
        let block = read(start..(start + step).min(rows));
        of.extend(nearest(&block, &centroids, dimensions));
        for (scale, row) in block.par_chunks_exact(dimensions).map(rounded).collect::<Vec<_>>() {
            scales.push(scale);
            codes.push(row);
        }
    }
    let mut order: Vec<u32> = (0..rows as u32).collect();
    order.sort_by_key(|row| (of[*row as usize], *row));
    let mut body = Vec::new();
    [dimensions, rows, lists].iter().for_each(|number| body.extend((*number as u32).to_le_bytes()));
    body.resize(HEAD_BYTES - 40, 0);
    centroids.iter().for_each(|number| body.extend(number.to_le_bytes()));
    for list in 0..=lists as u32 {
        let start = order.partition_point(|row| of[*row as usize] < list);
        body.extend((start as u32).to_le_bytes());
    }
    order.iter().for_each(|row| body.extend(row.to_le_bytes()));
    order.iter().for_each(|row| body.extend(scales[*row as usize].to_le_bytes()));
    order.iter().for_each(|row| body.extend(codes[*row as usize].iter().map(|code| *code as u8)));
    files::publish(path, &[MAGIC, blake3::hash(&body).as_bytes(), &body])
}

/// The file, mapped.
pub(crate) struct Approximate {
    bytes: FileData,
    dimensions: usize,
    rows: usize,
    lists: usize,
}

impl Approximate {
    /// Maps the file of so many rows.
    ///
    /// # Errors
    /// Unreadable, or that of other rows.
    pub fn open(path: &Path, (rows, dimensions): (usize, usize), check: bool) -> Result<Approximate> {
        let bytes = map::open(path)?;
        let [own, of, lists] = [40, 44, 48].map(|at| small(&bytes, at) as usize);
        let length = HEAD_BYTES + 4 * lists * dimensions + 4 * (lists + 1) + rows * (8 + dimensions);
        if !bytes.starts_with(MAGIC) || (own, of) != (dimensions, rows) || bytes.len() != length {
            return Err(Error::damaged(path, "it is not the file of the index's vectors"));
        }
        if check && blake3::hash(&bytes[40..]).as_bytes() != &bytes[8..40] {
            return Err(Error::damaged(path, "its hash is another one"));
        }
        Ok(Approximate { bytes, dimensions, rows, lists })
    }

    /// Rows that are probably among the nearest `k`, with `exact` products.
    pub fn nearest(&self, vector: &[f32], k: usize, exact: impl Fn(u32) -> f64) -> Vec<RankedChunk> {
        let (starts, entries, scales, codes) = self.sections();
        let centroids = self.bytes[HEAD_BYTES..starts].chunks_exact(4 * self.dimensions);
        let scored: Vec<RankedChunk> =
            (0u32..).zip(centroids).map(|(list, row)| (list, f64::from(product(row, vector)))).collect();
        let probed = ((self.lists as f64 * PROBED.0) as usize).max(PROBED.1);
        let (scale, query) = rounded(vector);
        let most = (k * CANDIDATES.0).max(CANDIDATES.1);
        let of_list = |(list, _): &RankedChunk| {
            let at = |list: usize| (small(&self.bytes, starts + 4 * list) as usize).min(self.rows);
            let range = at(*list as usize)..at(*list as usize + 1);
            let codes = &self.bytes[codes + range.start * self.dimensions..];
            let codes = &codes[..range.len() * self.dimensions];
            let products = dispatch!(Level::new(), simd => whole_products(simd, codes, &query));
            let of_entry = |(entry, product): (usize, i32)| {
                let row = small(&self.bytes, entries + 4 * entry);
                let own = f32::from_bits(small(&self.bytes, scales + 4 * entry));
                (row, f64::from(product as f32 * own * scale))
            };
            best(range.zip(products).map(of_entry).collect(), most)
        };
        let lists = best(scored, probed);
        let candidates: Vec<RankedChunk> = lists.par_iter().flat_map_iter(of_list).collect();
        let compared = best(candidates, most).into_iter().filter(|(row, _)| (*row as usize) < self.rows);
        best(compared.map(|(row, _)| (row, exact(row))).collect(), k)
    }

    /// Offsets of the starts of lists, of the entries, of their scales and their numbers.
    fn sections(&self) -> (usize, usize, usize, usize) {
        let starts = HEAD_BYTES + 4 * self.lists * self.dimensions;
        let entries = starts + 4 * (self.lists + 1);
        let scales = entries + 4 * self.rows;
        (starts, entries, scales, scales + 4 * self.rows)
    }
}

fn small(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// Products of rows of 8-bit numbers with another, which a 32-bit sum holds for rows of up to 2^17 numbers.
#[inline(always)]
fn whole_products<S: Simd>(_: S, codes: &[u8], query: &[i8]) -> Vec<i32> {
    let product = |code: &[u8]| {
        let pairs = code.iter().zip(query);
        pairs.fold(0i32, |sum, (a, b)| sum.wrapping_add(i32::from(i16::from(*a as i8) * i16::from(*b))))
    };
    codes.chunks_exact(query.len().max(1)).map(product).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unit vectors around some centres.
    fn rows(count: usize, dimensions: usize) -> Vec<f32> {
        let mut state = 3u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let centres: Vec<f32> = (0..50 * dimensions).map(|_| random()).collect();
        let mut all = Vec::with_capacity(count * dimensions);
        for at in 0..count {
            let centre = &centres[at % 50 * dimensions..][..dimensions];
            let row: Vec<f32> = centre.iter().map(|x| x + 0.5 * random()).collect();
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            all.extend(row.iter().map(|x| x / length));
        }
        all
    }

    #[test]
    fn most_of_the_nearest_are_found_and_the_file_is_the_same_every_time() {
        let (count, dimensions) = (10_000, 40);
        let all = rows(count, dimensions);
        let row = |at: usize| &all[at * dimensions..(at + 1) * dimensions];
        let read =
            |range: std::ops::Range<usize>| all[range.start * dimensions..range.end * dimensions].to_vec();
        let folder = tempfile::tempdir().unwrap();
        let [path, again] = ["a", "b"].map(|name| folder.path().join(name));
        write(&path, (count, dimensions), read).unwrap();
        write(&again, (count, dimensions), read).unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap());
        let found = Approximate::open(&path, (count, dimensions), true).unwrap();
        let mut hits = 0;
        for query in (0..count).step_by(500) {
            let product =
                |at: u32| row(query).iter().zip(row(at as usize)).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let exact = best((0..count as u32).map(|at| (at, product(at))).collect(), 10);
            let near = found.nearest(row(query), 10, product);
            hits += exact.iter().filter(|(at, _)| near.iter().any(|(other, _)| other == at)).count();
        }
        assert!(hits >= 190, "{hits} of 200");
        assert!(Approximate::open(&path, (count - 1, dimensions), true).is_err());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[99] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(Approximate::open(&path, (count, dimensions), true).is_err());
    }
}
