//! One-permutation hashing (Li, Owen and Zhang 2012) with optimal densification (Shrivastava 2017).

const MULTIPLIER: u32 = 0x9e37_79b1;

/// Bins of a signature.
pub(super) struct OnePermutation {
    bins: usize,
    seed: u32,
}

#[inline(always)]
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl OnePermutation {
    pub(super) fn new(bins: usize, seed: u32) -> OnePermutation {
        OnePermutation { bins, seed }
    }

    /// Lowers `minima` by the shingles. The high bits of a hash select the bin; the whole hash, scrambled
    /// injectively, is the value. `u32::MAX` marks an empty bin.
    #[inline(always)]
    pub(super) fn lower(&self, hashes: &[u32], minima: &mut [u32]) {
        let bins = self.bins as u64;
        for &hash in hashes {
            let bin = ((u64::from(hash) * bins) >> 32) as usize;
            let value = (hash ^ (hash >> 15)).wrapping_mul(MULTIPLIER);
            let value = (value ^ (value >> 13)).min(u32::MAX - 1);
            minima[bin] = minima[bin].min(value);
        }
    }

    /// Fills empty bins; at least one bin must be full. Bin i takes the value of the first full bin in its own random
    /// sequence, which is the same for all texts. Two texts therefore agree in a filled bin with probability equal to
    /// their similarity, as in the others.
    pub(super) fn densify(&self, minima: &mut [u32]) {
        let full: Vec<bool> = minima.iter().map(|&least| least != u32::MAX).collect();
        for bin in 0..self.bins {
            if full[bin] {
                continue;
            }
            let mut attempt = 0u64;
            let from = loop {
                let key = mix((bin as u64) << 32 | u64::from(self.seed)).wrapping_add(attempt);
                let from = ((u128::from(mix(key)) * self.bins as u128) >> 64) as usize;
                if full[from] {
                    break from;
                }
                attempt += 1;
            };
            minima[bin] = minima[from];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of equal signature numbers of two sets of `size` numbers with `shared` in common.
    fn agreement(size: u64, shared: u64, bins: usize, rounds: u64) -> f64 {
        let scheme = OnePermutation::new(bins, 5);
        let mut agree = 0;
        for round in 0..rounds {
            let element = |i: u64| mix(round << 40 | i) as u32;
            let set = |from: u64| {
                let mut minima = vec![u32::MAX; bins];
                let hashes: Vec<u32> = (from..from + size).map(element).collect();
                scheme.lower(&hashes, &mut minima);
                scheme.densify(&mut minima);
                minima
            };
            let (left, right) = (set(0), set(size - shared));
            agree += left.iter().zip(&right).filter(|(l, r)| l == r).count();
        }
        agree as f64 / (bins as f64 * rounds as f64)
    }

    #[test]
    fn estimates_the_jaccard_similarity() {
        // 800 of 1200 in common: 2/3; with fewer elements than bins the estimate is still unbiased.
        for (size, shared) in [(1000, 800), (100, 80)] {
            let jaccard = shared as f64 / (2 * size - shared) as f64;
            let found = agreement(size, shared, 260, 200);
            assert!((found - jaccard).abs() < 0.01, "{size}: {found} for {jaccard}");
        }
    }

    #[test]
    fn one_element_fills_all_bins() {
        assert_eq!(agreement(1, 1, 64, 3), 1.0);
        assert_eq!(agreement(1, 0, 64, 3), 0.0);
    }
}
