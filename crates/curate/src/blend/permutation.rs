//! A random permutation of `0..n` that needs no memory.

use fathom_text::Rng;

/// Rounds of the network. Four give a pseudorandom permutation (Luby and Rackoff 1988); small domains need more.
const ROUNDS: usize = 8;

/// A permutation of `0..len` selected by a key: a Feistel network over the next larger power of four, iterated until
/// the number is below `len` (cycle walking, Black and Rogaway 2002); fewer than four iterations on average.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Creates the permutation of `0..len` selected by this key.
    pub fn keyed(len: u64, key: &[u64]) -> Self {
        let mut rng = Rng::keyed(key);
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Self { len, half_bits: bits.div_ceil(2).max(1), keys: std::array::from_fn(|_| rng.next_u64()) }
    }

    /// Element at position `index`. Panics unless `index` is below the length.
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.len, "Permutation::at: place {index} of {}", self.len);
        let mut number = index;
        loop {
            number = self.network(number);
            if number < self.len {
                return number;
            }
        }
    }

    fn network(&self, number: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.keys {
            let mixed = Rng::keyed(&[right, key]).next_u64() & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        for len in [1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097] {
            let permutation = Permutation::keyed(len, &[7, len]);
            let mut all: Vec<u64> = (0..len).map(|index| permutation.at(index)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..len), "{len}");
        }
        assert!(Permutation::keyed(u64::MAX, &[1]).at(u64::MAX - 1) < u64::MAX);
    }

    #[test]
    fn keys_and_places_matter() {
        let of = |key: u64| {
            let permutation = Permutation::keyed(1000, &[key]);
            (0..1000).map(|index| permutation.at(index)).collect::<Vec<_>>()
        };
        assert_ne!(of(1), of(2));
        let stayed = of(3).iter().enumerate().filter(|&(place, &number)| place as u64 == number).count();
        assert!(stayed < 10, "{stayed} of 1000 stayed, one is expected");
    }
}
