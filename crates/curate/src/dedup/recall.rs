//! Recall of a banding scheme: compares all pairs of a set of texts exactly, with the pairs that the bands find and
//! that theory predicts.

use rayon::prelude::*;

use crate::dedup::bands::{Bands, FuzzyOptions};
use crate::dedup::jaccard::set;
use crate::dedup::minhash::MinHashScratch;
use crate::error::Error;

/// Pairs whose Jaccard similarity lies in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecallBucket {
    /// Pairs with a similarity in the interval.
    pub pairs: u64,
    /// Pairs that agree in some band.
    pub found: u64,
    /// Sum of `1 - (1 - J^rows)^bands` over the pairs.
    pub expected: f64,
}

impl RecallBucket {
    /// Share of pairs found; 0 if there are none.
    pub fn recall(&self) -> f64 {
        if self.pairs == 0 { 0.0 } else { self.found as f64 / self.pairs as f64 }
    }

    /// Theoretical value of [`RecallBucket::recall`].
    pub fn theory(&self) -> f64 {
        if self.pairs == 0 { 0.0 } else { self.expected / self.pairs as f64 }
    }

    /// Adds the pairs of another set of texts, or of other hash functions.
    pub fn add(&mut self, other: &RecallBucket) {
        self.pairs += other.pairs;
        self.found += other.found;
        self.expected += other.expected;
    }
}

/// Number of similarity intervals, each 0.05 wide; the last includes 1.
pub const RECALL_BUCKETS: usize = 20;

/// Compares all pairs of `texts` exactly and counts, per Jaccard interval of 0.05, how many the bands of `options`
/// find. Pairs without a common shingle have similarity 0 and are not counted. Memory: about 20 bytes per shingle.
///
/// # Errors
/// The options are invalid.
pub fn recall(options: &FuzzyOptions, texts: &[String]) -> Result<[RecallBucket; RECALL_BUCKETS], Error> {
    let bands = Bands::new(options)?;
    let sets: Vec<Vec<u64>> = texts.par_iter().map(|text| set(text, options.shingles, 0, 1)).collect();
    let keys: Vec<Vec<u64>> = texts
        .par_iter()
        .map_init(MinHashScratch::default, |scratch, text| {
            let mut keys = Vec::new();
            bands.keys(text, scratch, &mut keys);
            keys
        })
        .collect();
    let index = Index::of(&sets);
    let rows: Vec<[RecallBucket; RECALL_BUCKETS]> = (0..texts.len())
        .into_par_iter()
        .map_init(
            || vec![0u32; texts.len()],
            |common, first| {
                let mut buckets = [RecallBucket::default(); RECALL_BUCKETS];
                let others = index.count(&sets[first], first, common);
                for other in others {
                    let both = u64::from(std::mem::take(&mut common[other]));
                    let union = (sets[first].len() + sets[other].len()) as u64 - both;
                    let jaccard = both as f64 / union as f64;
                    let bucket = &mut buckets[((jaccard * 20.0) as usize).min(RECALL_BUCKETS - 1)];
                    bucket.pairs += 1;
                    bucket.found += u64::from(keys[first].iter().zip(&keys[other]).any(|(a, b)| a == b));
                    bucket.expected += options.probability(jaccard);
                }
                buckets
            },
        )
        .collect();
    let mut total = [RecallBucket::default(); RECALL_BUCKETS];
    for row in &rows {
        total.iter_mut().zip(row).for_each(|(sum, bucket)| sum.add(bucket));
    }
    Ok(total)
}

/// Inverted index of the shingles that occur in more than one text.
struct Index {
    /// Shingles, ascending, each with the end of its texts in `texts`.
    shingles: Vec<(u64, u32)>,
    texts: Vec<u32>,
}

impl Index {
    fn of(sets: &[Vec<u64>]) -> Index {
        let mut rows: Vec<(u64, u32)> = sets
            .iter()
            .enumerate()
            .flat_map(|(text, set)| set.iter().map(move |&hash| (hash, text as u32)))
            .collect();
        rows.par_sort_unstable();
        let mut index = Index { shingles: Vec::new(), texts: Vec::new() };
        for group in rows.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1) {
            index.texts.extend(group.iter().map(|&(_, text)| text));
            index.shingles.push((group[0].0, index.texts.len() as u32));
        }
        index
    }

    /// Counts into `common` the shingles that each later text shares with `first`, and returns those texts.
    fn count(&self, set: &[u64], first: usize, common: &mut [u32]) -> Vec<usize> {
        let mut others = Vec::new();
        for hash in set {
            let Ok(at) = self.shingles.binary_search_by_key(hash, |&(hash, _)| hash) else { continue };
            let start = if at == 0 { 0 } else { self.shingles[at - 1].1 as usize };
            for &text in &self.texts[start..self.shingles[at].1 as usize] {
                let text = text as usize;
                if text > first {
                    if common[text] == 0 {
                        others.push(text);
                    }
                    common[text] += 1;
                }
            }
        }
        others
    }
}
