//! Seeded random numbers (splitmix64), so that intervals repeat.

/// A stream of random numbers.
pub(crate) struct Random(u64);

impl Random {
    /// Starts a stream.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws one of a slice.
    pub fn of(&mut self, values: &[f64]) -> f64 {
        values[(self.next() % values.len() as u64) as usize]
    }
}
