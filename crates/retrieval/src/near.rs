//! Near-duplicate chunks: shingles of three terms, one-permutation MinHash (Li, Owen, Zhang 2012) with empty bins filled
//! by rotation (Shrivastava, Li 2014), bands of bins as keys. Chunks that share a band are compared by the Jaccard
//! similarity of their shingles.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;

use crate::terms::terms;

/// Terms of a shingle.
const SHINGLE: usize = 3;
/// Bins of a signature.
const BINS: usize = 32;
/// Bands of a signature, of four bins each: chunks with a similarity of 0.8 share one with probability 0.985.
pub(crate) const BAND_COUNT: usize = 8;
/// Similarity from which two chunks are near-duplicates.
pub(crate) const SIMILAR: f64 = 0.8;
/// Chunks of a band that a chunk is compared with, at most: those that came first.
const COMPARED: usize = 8;

/// Keys of a chunk's bands.
pub(crate) type Bands = [u64; BAND_COUNT];

/// Hash of bytes (FNV-1a, with a finalizer).
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    mix(bytes.iter().fold(start, |all: u64, byte| (all ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)))
}

/// The finalizer of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes of the shingles of a text's terms, given by their hashes. A shorter text is one shingle.
fn shingles(terms: &[u64]) -> impl Iterator<Item = u64> {
    let join = |part: &[u64]| part.iter().fold(0, |all: u64, term| mix(all.rotate_left(5) ^ term));
    terms.windows(SHINGLE.min(terms.len()).max(1)).map(join)
}

/// Keys of the bands of a text's terms.
pub(crate) fn bands(terms: &[u64]) -> Bands {
    let mut bins = [u64::MAX; BINS];
    for shingle in shingles(terms) {
        let bin = &mut bins[(shingle % BINS as u64) as usize];
        *bin = (*bin).min(shingle);
    }
    let filled = bins;
    for (at, bin) in bins.iter_mut().enumerate().filter(|(_, bin)| **bin == u64::MAX) {
        let next = (1..BINS).find(|step| filled[(at + step) % BINS] != u64::MAX);
        *bin = next.map_or(0, |step| mix(filled[(at + step) % BINS] ^ step as u64));
    }
    let rows = BINS / BAND_COUNT;
    std::array::from_fn(|band| {
        bins[band * rows..][..rows].iter().fold(band as u64, |all, bin| mix(all.rotate_left(7) ^ bin))
    })
}

/// Chunks that are near-duplicates of an earlier one, with that one, in ascending order. `text` reads a chunk's text.
pub(crate) fn duplicates<'a>(
    chunks: impl Iterator<Item = Bands>,
    text: impl Fn(u32) -> Option<&'a str>,
) -> Vec<(u32, u32)> {
    let mut keys: Vec<(u64, u32)> =
        (0u32..).zip(chunks).flat_map(|(chunk, bands)| bands.map(|band| (band, chunk))).collect();
    keys.par_sort_unstable();
    // A chunk with one that came before it, for every band that both have.
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for group in keys.chunk_by(|a, b| a.0 == b.0) {
        for (at, (_, chunk)) in group.iter().enumerate() {
            pairs.extend(group[..at.min(COMPARED)].iter().map(|(_, other)| (*chunk, *other)));
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    let mut sets: HashMap<u32, HashSet<u64>> = HashMap::new();
    let mut originals: HashMap<u32, u32> = HashMap::new();
    for of in pairs.chunk_by(|a, b| a.0 == b.0) {
        let chunk = of[0].0;
        let own = shingle_set(text(chunk));
        let mut similar = |original: &u32| {
            let other = sets.entry(*original).or_insert_with(|| shingle_set(text(*original)));
            let both = own.intersection(other).count() as f64;
            let all = (own.len() + other.len()) as f64 - both;
            all > 0.0 && both / all >= SIMILAR
        };
        let candidates = of.iter().map(|(_, other)| originals.get(other).copied().unwrap_or(*other));
        if let Some(original) =
            candidates.collect::<Vec<u32>>().into_iter().find(|original| similar(original))
        {
            originals.insert(chunk, original);
        }
    }
    let mut found: Vec<(u32, u32)> = originals.into_iter().collect();
    found.sort_unstable();
    found
}

fn shingle_set(text: Option<&str>) -> HashSet<u64> {
    let mut all = Vec::new();
    terms(text.unwrap_or_default(), |term| all.push(hash(term.as_bytes())));
    shingles(&all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Vec<(u32, u32)> {
        let bands = texts.iter().map(|text| {
            let mut all = Vec::new();
            terms(text, |term| all.push(hash(term.as_bytes())));
            bands(&all)
        });
        duplicates(bands, |at| texts.get(at as usize).copied())
    }

    #[test]
    fn texts_that_differ_little_are_near_duplicates_of_the_first() {
        let long: Vec<String> = (0..80).map(|at| format!("word{}", at * at % 97)).collect();
        let a = long.join(" ");
        let b = a.replacen("word16", "other", 1);
        let c = format!("{} {}", "entirely different words here", a[..60].to_uppercase());
        assert_eq!(of(&[&a, &b, &c, &a]), [(1, 0), (3, 0)]);
        assert_eq!(of(&["one two", "one two", "one three", ""]), [(1, 0)]);
    }
}
