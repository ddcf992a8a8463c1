//! Near-duplicate chunks: shingles of three terms, one-permutation MinHash (Li, Owen, Zhang 2012) with empty bins filled
//! by rotation (Shrivastava, Li 2014), bands of bins as keys. Chunks that share a band are compared by the Jaccard
//! similarity of their shingles.

mod keys;
mod similar;

pub(crate) use keys::Keys;
pub(crate) use similar::update;

use std::collections::HashSet;

use crate::terms::terms;

/// Terms of a shingle.
const SHINGLE: usize = 3;
/// Bins of a signature.
const BINS: usize = 32;
/// Bands of a signature, of four bins each: chunks with a similarity of 0.8 share one with probability 0.985.
pub(crate) const BAND_COUNT: usize = 8;

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

fn shingle_set(text: &str) -> HashSet<u64> {
    let mut all = Vec::new();
    terms(text, |term| all.push(hash(term.as_bytes())));
    shingles(&all).collect()
}
