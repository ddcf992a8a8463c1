//! Rows of a table of distances.

/// A table of `2 span` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distances {
    /// Half the rows.
    pub span: usize,
    /// True if distances beyond half of `span` share rows by their logarithm.
    pub buckets: bool,
    /// Distance at which the logarithm ends.
    pub max_distance: usize,
}

impl Distances {
    /// The row of each distance from `1 - n` to `n - 1`.
    pub(super) fn rows(self, n: usize) -> Vec<usize> {
        let last = 2 * self.span as i64 - 1;
        let row = |distance: i64| (self.bucket(distance) + self.span as i64).clamp(0, last) as usize;
        (1 - n as i64..n as i64).map(row).collect()
    }

    /// Distances up to half the span are unchanged, larger ones follow their logarithm, in f32 as in Transformers.
    fn bucket(self, distance: i64) -> i64 {
        let mid = (self.span / 2) as i64;
        if !self.buckets || distance.abs() <= mid {
            return distance;
        }
        let (far, mid_f) = (distance.abs() as f32, mid as f32);
        let end = ((self.max_distance as f64 - 1.0) / mid as f64) as f32;
        let steps = ((far / mid_f).ln() / end.ln() * (mid_f - 1.0)).ceil();
        distance.signum() * (steps as i64 + mid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Transformers' `make_log_bucket_position` with 256 buckets and 512 distances, and symmetry.
    #[test]
    fn far_distances_share_rows() {
        let distances = Distances { span: 256, buckets: true, max_distance: 512 };
        let found = [0, 1, 127, 128, 129, 150, 200, 300, 511, 600].map(|distance| distances.bucket(distance));
        assert_eq!(found, [0, 1, 127, 128, 129, 143, 169, 207, 255, 270]);
        for distance in 0..600 {
            assert_eq!(distances.bucket(-distance), -distances.bucket(distance));
        }
    }
}
