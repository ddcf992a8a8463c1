//! Rates with intervals, and quantiles.

use serde::{Deserialize, Serialize};

/// Quantile of the normal distribution for intervals of 95 %.
const Z: f64 = 1.959963984540054;

/// A share with its counts and its Wilson interval of 95 % (Wilson, 1927).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Number of hits.
    pub hits: usize,
    /// Number of cases.
    pub of: usize,
    /// Hits per case; 0 without cases.
    pub rate: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Rate {
    /// The rate of hits among cases.
    pub fn new(hits: usize, of: usize) -> Rate {
        if of == 0 {
            return Rate { high: 1.0, ..Rate::default() };
        }
        let (n, p) = (of as f64, hits as f64 / of as f64);
        let scale = 1.0 + Z * Z / n;
        let centre = (p + Z * Z / (2.0 * n)) / scale;
        let half = Z / scale * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
        // The interval touches the ends exactly where all cases agree.
        let low = if hits == 0 { 0.0 } else { (centre - half).max(0.0) };
        let high = if hits == of { 1.0 } else { (centre + half).min(1.0) };
        Rate { hits, of, rate: p, low, high }
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rate { hits, of, rate, low, high } = self;
        write!(f, "{:.1} % ({hits} of {of}; {:.1} to {:.1})", 100.0 * rate, 100.0 * low, 100.0 * high)
    }
}

/// Quantiles of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_ms: f64,
    /// 90 % are faster.
    pub p90_ms: f64,
    /// 99 % are faster.
    pub p99_ms: f64,
    /// Slowest.
    pub max_ms: f64,
}

impl Latency {
    /// Quantiles of times in seconds, by the nearest rank; zeros for none.
    pub fn of(mut seconds: Vec<f64>) -> Latency {
        seconds.sort_by(f64::total_cmp);
        let at = |quantile: f64| {
            let rank = (quantile * seconds.len() as f64).ceil() as usize;
            seconds.get(rank.saturating_sub(1).min(seconds.len().saturating_sub(1))).map_or(0.0, |s| s * 1e3)
        };
        Latency { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), max_ms: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures computed from Wilson's formula in Python.
    #[test]
    fn intervals_are_wilsons() {
        for (hits, of, low, high) in [
            (0, 10, 0.0, 0.2775327998628892),
            (5, 10, 0.236593090512564, 0.763406909487436),
            (10, 10, 0.7224672001371107, 1.0),
            (3, 200, 0.00511423779325831, 0.04316572879269026),
        ] {
            let rate = Rate::new(hits, of);
            assert!((rate.low - low).abs() < 1e-12 && (rate.high - high).abs() < 1e-12, "{rate:?}");
        }
        assert_eq!(Rate::new(0, 0).high, 1.0);
        assert_eq!(Rate::new(1, 4).to_string(), "25.0 % (1 of 4; 4.6 to 69.9)");
    }

    #[test]
    fn quantiles_are_measured_times() {
        let latency = Latency::of((1..=100).rev().map(|ms| f64::from(ms) / 1e3).collect());
        assert_eq!(
            (latency.p50_ms.round(), latency.p99_ms.round(), latency.max_ms.round()),
            (50.0, 99.0, 100.0)
        );
        assert_eq!(Latency::of(vec![0.002]).p99_ms, 2.0);
        assert_eq!(Latency::of(Vec::new()), Latency::default());
    }
}
