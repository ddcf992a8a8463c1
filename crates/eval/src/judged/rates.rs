//! Rates of wins with their intervals.

use serde_json::{Value, json};

use super::length::{Judgement, fit};
use crate::metrics::aggregate::{deviation, mean};
use crate::python::random::Random;

/// Resamples of the intervals.
pub const RESAMPLES: usize = 1000;
/// Seed of the resamples.
const SEED: u64 = 1234;

/// A figure with its interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The figure.
    pub value: f64,
    /// Its ends.
    pub interval: [f64; 2],
}

/// Rates of the wins of an answerer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Number of comparisons.
    pub items: usize,
    /// Mean preference.
    pub wins: Rate,
    /// Standard error of it.
    pub error: f64,
    /// The same if all answers were as long as the others; `None` for fewer than five comparisons.
    pub length_controlled: Option<Rate>,
    /// Share of comparisons in which both orders say the same.
    pub agreement: f64,
    /// Mean characters of the answers and of the others.
    pub lengths: [f64; 2],
}

impl Rates {
    /// The rates of comparisons, with intervals over `resamples`; `None` without a comparison.
    pub fn of(all: &[Judgement], resamples: usize) -> Option<Rates> {
        if all.is_empty() {
            return None;
        }
        let wins = |all: &[Judgement]| mean(&all.iter().map(|it| it.preference).collect::<Vec<_>>());
        let preferences: Vec<f64> = all.iter().map(|it| it.preference).collect();
        let fitted = fit(all);
        // The strength of the penalty is chosen once.
        let controlled = |all: &[Judgement]| fitted.as_ref().map_or(f64::NAN, |it| it.again(all).rate(all));
        let length = |of: usize| mean(&all.iter().map(|it| it.lengths[of] as f64).collect::<Vec<_>>());
        Some(Rates {
            items: all.len(),
            wins: Rate { value: wins(all), interval: interval(all, resamples, &wins) },
            error: deviation(&preferences) / (all.len() as f64).sqrt(),
            length_controlled: fitted
                .as_ref()
                .map(|it| Rate { value: it.rate(all), interval: interval(all, resamples, &controlled) }),
            agreement: all.iter().filter(|it| it.agrees).count() as f64 / all.len() as f64,
            lengths: [length(0), length(1)],
        })
    }

    /// The object of the results' file.
    pub fn json(&self) -> Value {
        let rate = |rate: Option<Rate>| {
            rate.map_or([Value::Null, Value::Null], |it| [json!(it.value), json!(it.interval)])
        };
        let [wins, wins_interval] = rate(Some(self.wins));
        let [controlled, controlled_interval] = rate(self.length_controlled);
        json!({
            "items": self.items, "win_rate": wins, "win_rate_stderr": self.error, "win_rate_interval": wins_interval,
            "length_controlled_win_rate": controlled, "length_controlled_interval": controlled_interval,
            "agreement_of_orders": self.agreement, "characters": self.lengths[0], "characters_against": self.lengths[1],
        })
    }
}

/// The middle 95 % of a figure over resamples.
pub fn interval<T: Clone>(all: &[T], resamples: usize, figure: &dyn Fn(&[T]) -> f64) -> [f64; 2] {
    let mut random = Random::new(SEED);
    let mut draw = || {
        let drawn: Vec<T> = (0..all.len()).map(|_| all[random.choice_index(all.len())].clone()).collect();
        figure(&drawn)
    };
    let mut found: Vec<f64> = (0..resamples).map(|_| draw()).collect();
    found.sort_by(f64::total_cmp);
    // Linear between neighbours, as `numpy.percentile`.
    let quantile = |share: f64| {
        let at = share * found.len().saturating_sub(1) as f64;
        let (below, above) = (found.get(at.floor() as usize), found.get(at.ceil() as usize));
        below.zip(above).map_or(f64::NAN, |(below, above)| below + (above - below) * at.fract())
    };
    [quantile(0.025), quantile(0.975)]
}
