//! A distribution of any values in little space, whose sum does not depend on the order of its parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Buckets of width 1/64 between -1 and 1, and 16 buckets an octave (4.4 % wide) beyond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    counts: BTreeMap<i32, u64>,
}

impl Histogram {
    /// Counts a value; one that is not a number counts nowhere.
    pub fn add(&mut self, value: f64) {
        self.add_many(value, 1);
    }

    /// Counts a value that came up so many times.
    pub fn add_many(&mut self, value: f64, times: u64) {
        if !value.is_nan() && times > 0 {
            *self.counts.entry(bucket(value)).or_default() += times;
        }
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Histogram) {
        for (&bucket, &count) in &other.counts {
            *self.counts.entry(bucket).or_default() += count;
        }
    }

    /// How many values there are.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// (lower end, upper end, count) of every bucket that holds a value, ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, f64, u64)> + '_ {
        self.counts.iter().map(|(&bucket, &count)| (lower(bucket), lower(bucket + 1), count))
    }

    /// The value below which this share of the values lies, to the width of a bucket; `None` without values.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = (share.clamp(0.0, 1.0) * self.total() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.counts.iter().find_map(|(&bucket, &count)| {
            seen += count;
            (seen >= wanted).then(|| lower(bucket))
        })
    }
}

const LINEAR: i32 = 64;
const OCTAVE: f64 = 16.0;

fn bucket(value: f64) -> i32 {
    let size = value.abs();
    if size < 1.0 {
        return (value * f64::from(LINEAR)).floor() as i32;
    }
    let place = LINEAR + (size.min(1e30).log2() * OCTAVE).floor() as i32;
    if value < 0.0 { -place - 1 } else { place }
}

/// The least value of a bucket.
fn lower(bucket: i32) -> f64 {
    let beyond = |place: i32| (f64::from(place - LINEAR) / OCTAVE).exp2();
    match bucket {
        b if b >= LINEAR => beyond(b),
        b if b < -LINEAR => -beyond(-b),
        b => f64::from(b) / f64::from(LINEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in [-5e4, -100.0, -1.5, -1.0, -0.5, -1e-9, 0.0, 0.3, 0.999, 1.0, 1.01, 24.0, 1e5, 1e12] {
            let b = bucket(value);
            let slack = value.abs() * 1e-12;
            assert!(lower(b) <= value + slack && value <= lower(b + 1) + slack, "{value}: bucket {b}");
        }
    }

    #[test]
    fn sums_do_not_depend_on_the_order() {
        let values: Vec<f64> = (0..1000).map(|i| f64::from(i * i % 997) / 10.0 - 3.0).collect();
        let all = |values: &[f64]| {
            let mut h = Histogram::default();
            values.iter().for_each(|v| h.add(*v));
            h
        };
        let (mut left, right) = (all(&values[..400]), all(&values[400..]));
        let mut other = right.clone();
        other.merge(&left);
        left.merge(&right);
        assert_eq!(left, other);
        assert_eq!(left, all(&values));
        assert_eq!(left.total(), 1000);
    }
}
