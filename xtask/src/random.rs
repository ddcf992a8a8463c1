//! Random numbers for what is done at random moments.

/// SplitMix64 (Steele et al., 2014).
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// From 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 to `below`, without it.
    pub fn below(&mut self, below: u64) -> u64 {
        self.word() % below
    }
}
