//! Dropout by counters (Srivastava et al., 2014): whether an element is dropped is a function of a key of its row, of a number of the
//! place where it is asked, and of its column. So a mask is never stored, and is the same for whoever asks, as often as it is asked.

use crate::moments::noise;

/// Which elements are dropped, and what the others are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Of the place: joins the rows' keys.
    pub salt: u32,
    /// Of 2^20 numbers those below this one are dropped.
    pub threshold: u32,
    /// One over the share that stays, so that the expectation is what it was.
    pub factor: f32,
    /// The first column's number, where others have those before it.
    pub first: usize,
}

impl Dropout {
    /// Of a share `rate` of all elements, to a 2^20th.
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

    /// Whether the element is dropped that is in this column of a row with this key.
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
