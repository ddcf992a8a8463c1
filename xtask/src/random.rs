//! A small random number generator for tests.

/// SplitMix64 (Steele et al., 2014).
pub struct Random(pub u64);

impl Random {
    /// A random 64-bit number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A random number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A random number in 0..`below`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.word() % below
    }
}
