//! A compact histogram of arbitrary values; merging does not depend on the order of the parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Buckets of width 1/64 between -1 and 1, and 16 buckets per octave (4.4 % wide) beyond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    counts: BTreeMap<i32, u64>,
}

impl Histogram {
    /// Counts a value; NaN is ignored.
    pub fn add(&mut self, value: f64) {
        self.add_many(value, 1);
    }

    /// Counts a value `times` times.
    pub fn add_many(&mut self, value: f64, times: u64) {
        if !value.is_nan() && times > 0 {
            *self.counts.entry(bucket(value)).or_default() += times;
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (&bucket, &count) in &other.counts {
            *self.counts.entry(bucket).or_default() += count;
        }
    }

    /// Number of values.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// (lower end, upper end, count) of every bucket between the first and the last non-empty one, ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, f64, u64)> + '_ {
        let ends = self.counts.first_key_value().zip(self.counts.last_key_value());
        let range = ends.map(|((&first, _), (&last, _))| first..=last);
        let count = |bucket| self.counts.get(&bucket).copied().unwrap_or(0);
        range.into_iter().flatten().map(move |bucket| (lower(bucket), lower(bucket + 1), count(bucket)))
    }

    /// Quantile of the values, as the shortest number in its bucket; `None` without values.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = (share.clamp(0.0, 1.0) * self.total() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.counts.iter().find_map(|(&bucket, &count)| {
            seen += count;
            (seen >= wanted).then(|| shortest(lower(bucket), lower(bucket + 1)))
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

/// Lower end of a bucket.
fn lower(bucket: i32) -> f64 {
    let beyond = |place: i32| (f64::from(place - LINEAR) / OCTAVE).exp2();
    match bucket {
        b if b >= LINEAR => beyond(b),
        b if b < -LINEAR => -beyond(-b),
        b => f64::from(b) / f64::from(LINEAR),
    }
}

/// Decimal number with the fewest digits in `from..to`.
fn shortest(from: f64, to: f64) -> f64 {
    if from <= 0.0 {
        return if to > 0.0 { 0.0 } else { -shortest(-to, -from) };
    }
    let (middle, digits) = (0.5 * (from + to), to.log10().floor() as i32);
    let rounded = |place: i32| match place {
        // Tenths and hundredths are exact only as quotients.
        _ if place < 0 => (middle * 10f64.powi(-place)).round() / 10f64.powi(-place),
        _ => (middle / 10f64.powi(place)).round() * 10f64.powi(place),
    };
    let places = (digits - 4..=digits).rev();
    places.map(rounded).find(|number| (from..to).contains(number)).unwrap_or(middle)
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
    fn quantiles_are_short_numbers() {
        for value in [0.0, 0.3, 1.0, 2.0, 6.0, 7.0, 11.0, 100.0, -7.0] {
            let mut h = Histogram::default();
            h.add(value);
            assert_eq!(h.quantile(0.5), Some(value), "{:?}", lower(bucket(value)));
        }
        let mut h = Histogram::default();
        [285.0, 310.0].into_iter().for_each(|value| h.add(value));
        assert_eq!(h.quantile(0.5), Some(290.0));
        assert_eq!(h.buckets().map(|(_, _, n)| n).collect::<Vec<_>>(), [1, 0, 1]);
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
