//! A small counter-based generator whose sequence is part of the data format: if it changed with a dependency, a
//! saved cursor would point at other samples.

/// SplitMix64 (Steele, Lea, Flood 2014): the state is a counter, the output a bijective mix of it.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    /// Creates the stream of this key; different keys give unrelated streams, and the order of the parts matters.
    pub fn keyed(key: &[u64]) -> Self {
        let state =
            key.iter().fold(0x5851_F42D_4C95_7F2D, |state, &part| mix(mix(part ^ GOLDEN) ^ mix(state)));
        Self { state }
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Returns an integer in `0..bound`, with bias of at most 2^-64 x bound. Panics when `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "Rng::below needs a bound above zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an index into a slice of `len` elements. Panics when `len` is zero.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a number in `[0, 1)` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Shuffles in place (Fisher-Yates, from the end).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Picks an element of a non-empty slice.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_fixed() {
        let mut rng = Rng { state: 0 };
        assert_eq!(rng.next_u64(), 0xE220_A839_7B1D_CDAF, "first output of SplitMix64 from state 0");
        let mut order: Vec<u32> = (0..8).collect();
        Rng::keyed(&[1, 2]).shuffle(&mut order);
        let mut again: Vec<u32> = (0..8).collect();
        Rng::keyed(&[1, 2]).shuffle(&mut again);
        assert_eq!(order, again);
        assert_ne!(Rng::keyed(&[1, 2]).next_u64(), Rng::keyed(&[2, 1]).next_u64());
        assert_ne!(Rng::keyed(&[0]).next_u64(), Rng::keyed(&[0, 0]).next_u64());
    }

    #[test]
    fn draws_stay_in_range_and_spread() {
        let mut rng = Rng::keyed(&[7]);
        let mut counts = [0u32; 5];
        for _ in 0..5000 {
            counts[rng.index(5)] += 1;
            let unit = rng.unit();
            assert!((0.0..1.0).contains(&unit));
        }
        assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }
}
