//! Ranked lists: the best of many scores, and the fusion of several lists.

use std::cmp::Ordering;
use std::collections::HashMap;

/// A chunk with its score.
pub type RankedChunk = (u32, f64);

/// Constant of reciprocal rank fusion (Cormack, Clarke, Buettcher 2009).
pub const FUSION: f64 = 60.0;

/// Order of a ranking: higher scores first, equal ones in the order of chunks.
pub fn order(a: &RankedChunk, b: &RankedChunk) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The best `k`, in order.
pub fn best(mut scored: Vec<RankedChunk>, k: usize) -> Vec<RankedChunk> {
    if k == 0 {
        return Vec::new();
    }
    if scored.len() > k {
        scored.select_nth_unstable_by(k - 1, order);
        scored.truncate(k);
    }
    scored.sort_unstable_by(order);
    scored
}

/// Reciprocal rank fusion: the score of a chunk is the sum of `1 / (60 + rank)` over the lists that have it.
pub fn fused(lists: &[Vec<RankedChunk>], k: usize) -> Vec<RankedChunk> {
    let mut sums: HashMap<u32, f64> = HashMap::new();
    for list in lists {
        for (rank, (chunk, _)) in (1u32..).zip(list) {
            *sums.entry(*chunk).or_default() += 1.0 / (FUSION + f64::from(rank));
        }
    }
    best(sums.into_iter().collect(), k)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equal_ones_in_order() {
        let all = vec![(3, 1.0), (1, 2.0), (2, 1.0), (0, 0.5)];
        assert_eq!(best(all.clone(), 3), [(1, 2.0), (2, 1.0), (3, 1.0)]);
        assert_eq!(best(all.clone(), 9).len(), 4);
        assert!(best(all, 0).is_empty());
    }

    #[test]
    fn fusion_adds_reciprocal_ranks() {
        let found = fused(&[vec![(7, 9.0), (8, 1.0)], vec![(8, 0.3)]], 10);
        assert_eq!(found, [(8, 1.0 / 62.0 + 1.0 / 61.0), (7, 1.0 / 61.0)]);
    }
}
