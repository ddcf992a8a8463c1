//! A fixed-size Bloom filter; [`super::bloom`] chains several of them.

/// Bytes of a filter: `-n ln p / (ln 2)^2` bits (Bloom 1970) in whole words.
pub(super) fn layer_bytes(ngrams: u64, rate: f64) -> u64 {
    let bits = -(ngrams as f64) * rate.ln() / std::f64::consts::LN_2.powi(2);
    ((bits / 64.0).ceil() as u64).max(1).saturating_mul(8)
}

/// A Bloom filter of one size.
pub(super) struct Layer {
    words: Vec<u64>,
    /// Bits set per n-gram: `log2(1 / p)`.
    probes: u32,
    /// Number of n-grams that it is sized for.
    pub(super) expected: u64,
    /// Number of n-grams inserted.
    pub(super) inserted: u64,
}

impl Layer {
    /// Creates an empty filter; `None` if memory cannot be allocated.
    pub(super) fn new(expected: u64, rate: f64) -> Option<Layer> {
        let len = (layer_bytes(expected, rate) / 8) as usize;
        let mut words = Vec::new();
        words.try_reserve_exact(len).ok()?;
        words.resize(len, 0);
        let probes = (-rate.log2()).round().clamp(1.0, 32.0) as u32;
        Some(Layer { words, probes, expected, inserted: 0 })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Bit positions of an n-gram by double hashing (Kirsch and Mitzenmacher 2006).
    fn positions(&self, ngram: u64) -> impl Iterator<Item = u64> + use<> {
        let bits = self.words.len() as u64 * 64;
        let step = (ngram.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..self.probes).scan(ngram, move |at, _| {
            let position = ((u128::from(*at) * u128::from(bits)) >> 64) as u64;
            *at = at.wrapping_add(step);
            Some(position)
        })
    }

    pub(super) fn contains(&self, ngram: u64) -> bool {
        self.positions(ngram).all(|bit| self.words[(bit / 64) as usize] >> (bit % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, ngram: u64) {
        for bit in self.positions(ngram) {
            self.words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
        self.inserted += 1;
    }

    pub(super) fn false_positive_rate(&self) -> f64 {
        let (bits, probes) = (self.words.len() as f64 * 64.0, f64::from(self.probes));
        (1.0 - (-probes * self.inserted as f64 / bits).exp()).powf(probes)
    }
}
