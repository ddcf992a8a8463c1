//! Counter-based dropout (Srivastava et al., 2014): whether an element is dropped is a function of its row's key, a
//! number of the place in the model, and its column. A mask is therefore never stored, and every evaluation gives the
//! same one.

use crate::moments::noise;

/// The elements that are dropped, and the factor of the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Number of the place in the model; combined with the rows' keys.
    pub salt: u32,
    /// Threshold: of 2^20 random numbers, those below it drop the element.
    pub threshold: u32,
    /// One over the share that is kept, which preserves the expectation.
    pub factor: f32,
    /// Global index of the first column, if other ranks hold the columns before it.
    pub first: usize,
}

impl Dropout {
    /// Dropout at probability `rate`, rounded to a multiple of 2^-20.
    ///
    /// # Panics
    /// If the rate is not from 0 to below 1.
    #[track_caller]
    pub fn new(rate: f32, salt: u32, first: usize) -> Dropout {
        assert!((0.0..1.0).contains(&rate), "dropout: a rate of {rate}");
        let threshold = ((f64::from(rate) * 1_048_576.0).round() as u32).min((1 << 20) - 1);
        let factor = (1.0 / (1.0 - f64::from(threshold) / 1_048_576.0)) as f32;
        Dropout { salt, threshold, factor, first }
    }

    /// True if the element in this column of a row with this key is dropped.
    #[inline(always)]
    pub fn drops(&self, key: i32, col: usize) -> bool {
        noise(key.cast_unsigned() ^ self.salt, (self.first + col) as u32) < self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_dropped_that_is_asked_for() {
        for rate in [0.0, 0.1, 0.5, 0.9] {
            let how = Dropout::new(rate, 77, 3);
            let dropped = (0..64).flat_map(|key| (0..4096).map(move |col| how.drops(key * 7919, col)));
            let share = dropped.filter(|dropped| *dropped).count() as f32 / (64.0 * 4096.0);
            assert!((share - rate).abs() < 4e-3, "{share} of {rate}");
            assert!((how.factor * (1.0 - rate) - 1.0).abs() < 1e-5);
        }
        let parts = (Dropout::new(0.5, 1, 0), Dropout::new(0.5, 1, 10));
        assert!((0..50).all(|col| parts.0.drops(5, col + 10) == parts.1.drops(5, col)));
    }
}
