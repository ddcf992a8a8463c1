//! Intervals by a bootstrap of residuals: every resample adds drawn residuals to the fitted log losses and fits again.
//!
//! Residuals of a fit with `p` unknowns to `n` points are smaller than the errors behind them; they are enlarged by
//! `sqrt(n / (n - p))`. Resampling residuals, not points, keeps every resample of a small ladder determined.

use crate::laws::Law;
use crate::random::Random;

/// A central interval of a bootstrap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Returns the central interval that holds `level` of the values; `None` without finite values.
    pub fn of(values: impl IntoIterator<Item = f64>, level: f64) -> Option<Interval> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|x| x.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |share: f64| {
            let place = share * last as f64;
            let (below, part) = (place.floor() as usize, place.fract());
            sorted[below] + part * (sorted[(below + 1).min(last)] - sorted[below])
        };
        Some(Interval { low: at((1.0 - level) / 2.0), high: at((1.0 + level) / 2.0) })
    }

    /// Returns whether a value is inside.
    pub fn holds(&self, x: f64) -> bool {
        (self.low..=self.high).contains(&x)
    }
}

/// Laws fitted to resamples, and an error for a new run with each.
#[derive(Clone, Debug)]
pub struct Resamples<T> {
    /// The laws.
    pub laws: Vec<T>,
    /// A drawn residual for each law: what a new run adds to its predicted log loss.
    pub errors: Vec<f64>,
}

impl<T> Resamples<T> {
    /// Interval of a figure of the law.
    pub fn interval(&self, level: f64, figure: impl Fn(&T) -> f64) -> Option<Interval> {
        Interval::of(self.laws.iter().map(figure), level)
    }

    /// Interval in which the loss of a new run is expected: the law's uncertainty and that of a single run.
    pub fn prediction(&self, level: f64, loss: impl Fn(&T) -> f64) -> Option<Interval> {
        let with_error = self.laws.iter().zip(&self.errors).map(|(law, error)| loss(law) * error.exp());
        Interval::of(with_error, level)
    }
}

/// Fits a law to `count` resamples of its residuals. Without more points than unknowns there is nothing to resample, and
/// the result is empty.
pub fn resample<T>(fit: &Law<T>, count: usize, seed: u64) -> Resamples<T> {
    let (points, unknowns) = (fit.residuals.len(), fit.unknowns());
    if points <= unknowns {
        return Resamples { laws: Vec::new(), errors: Vec::new() };
    }
    let factor = (points as f64 / (points - unknowns) as f64).sqrt();
    let mean = fit.residuals.iter().sum::<f64>() / points as f64;
    let residuals: Vec<f64> = fit.residuals.iter().map(|r| (r - mean) * factor).collect();
    let fitted: Vec<f64> =
        fit.problem.rows.iter().zip(&fit.residuals).map(|(row, r)| row.log_loss - r).collect();
    let mut random = Random::new(seed);
    let mut resampled = Resamples { laws: Vec::with_capacity(count), errors: Vec::with_capacity(count) };
    for _ in 0..count {
        let losses: Vec<f64> = fitted.iter().map(|y| y + random.of(&residuals)).collect();
        resampled.laws.push(fit.again(&losses));
        resampled.errors.push(random.of(&residuals));
    }
    resampled
}
