//! Steps of a run in bounded memory: means, and smallest and largest values of stretches of steps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The fields of a step that curves and tables show.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct StepFacts {
    /// Completed updates.
    pub step: u64,
    /// Tokens trained on so far.
    pub tokens_total: u64,
    /// Seconds spent training so far.
    pub time_s: Option<f64>,
    /// Mean loss.
    pub loss: Option<f64>,
    /// Learning rate.
    pub lr: Option<f64>,
    /// Global gradient norm.
    pub grad_norm: Option<f64>,
    /// Tokens per second.
    pub tokens_per_s: Option<f64>,
    /// TFLOP/s of the model.
    pub model_tflops: Option<f64>,
    /// Seconds of the step.
    pub step_s: Option<f64>,
    /// Peak bytes of the pool.
    pub pool_peak_bytes: u64,
    /// Metrics of the objective.
    pub metrics: BTreeMap<String, Option<f64>>,
}

/// Most stretches of a series. With more, neighbours are merged.
const MOST: usize = 4096;
/// Most metrics by name.
const MOST_NAMES: usize = 64;

/// Quantity along which a curve runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Along {
    /// Completed updates.
    #[default]
    Step,
    /// Tokens trained on.
    Tokens,
    /// Seconds spent training.
    Time,
}

/// Values of a metric in a stretch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Values {
    sum: f64,
    count: u32,
    low: f64,
    high: f64,
}

impl Values {
    const NONE: Values = Values { sum: 0.0, count: 0, low: f64::INFINITY, high: f64::NEG_INFINITY };

    fn add(&mut self, other: Values) {
        self.sum += other.sum;
        self.count += other.count;
        (self.low, self.high) = (self.low.min(other.low), self.high.max(other.high));
    }

    fn of(value: f64) -> Values {
        if value.is_finite() {
            Values { sum: value, count: 1, low: value, high: value }
        } else {
            Values::NONE
        }
    }
}

/// A stretch of steps, described by its last one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    step: u64,
    tokens: u64,
    time_s: f64,
    steps: u32,
}

/// A series of steps.
#[derive(Clone, Debug, Default)]
pub struct Series {
    stretches: Vec<Stretch>,
    /// Values by metric, one for each stretch; shorter lists end before the newest stretches.
    values: BTreeMap<String, Vec<Values>>,
    /// Steps of a whole stretch: a power of two.
    width: u32,
}

/// A curve with about as many points as were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curve {
    /// Positions.
    pub x: Vec<f64>,
    /// Means.
    pub mean: Vec<f32>,
    /// Smallest values.
    pub low: Vec<f32>,
    /// Largest values.
    pub high: Vec<f32>,
}

impl Stretch {
    const BYTES: usize = 28;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.step.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time_s.to_le_bytes());
        bytes[24..].copy_from_slice(&self.steps.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Stretch> {
        let long = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let steps = bytes.get(24..28)?.try_into().ok().map(u32::from_le_bytes)?;
        Some(Stretch { step: long(0)?, tokens: long(8)?, time_s: f64::from_bits(long(16)?), steps })
    }
}

impl Values {
    const BYTES: usize = 28;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (at, number) in [self.sum, self.low, self.high].into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Values> {
        let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(f64::from_le_bytes);
        let count = bytes.get(24..28)?.try_into().ok().map(u32::from_le_bytes)?;
        Some(Values { sum: number(0)?, low: number(8)?, high: number(16)?, count })
    }
}

impl Series {
    /// Names of its metrics, the steps of a whole stretch, and all numbers: the stretches, then the values of each metric.
    pub(super) fn to_bytes(&self) -> (Vec<String>, u32, Vec<u8>) {
        let count = self.stretches.len();
        let mut bytes: Vec<u8> = self.stretches.iter().flat_map(|stretch| stretch.to_bytes()).collect();
        for values in self.values.values() {
            let missing = std::iter::repeat_n(Values::NONE, count - values.len());
            bytes.extend(values.iter().copied().chain(missing).flat_map(Values::to_bytes));
        }
        (self.values.keys().cloned().collect(), self.width, bytes)
    }

    /// Reads what [`Series::to_bytes`] wrote; `None` if it is damaged.
    pub(super) fn from_bytes(bytes: &[u8], names: Vec<String>, width: u32) -> Option<Series> {
        let row = Stretch::BYTES + names.len() * Values::BYTES;
        let count = bytes.len() / row;
        if count * row != bytes.len() || count > MOST || names.len() > MOST_NAMES {
            return None;
        }
        let (stretches, mut rest) = bytes.split_at(count * Stretch::BYTES);
        let stretches =
            stretches.chunks_exact(Stretch::BYTES).map(Stretch::from_bytes).collect::<Option<_>>()?;
        let mut values = BTreeMap::new();
        for name in names {
            let (own, after) = rest.split_at(count * Values::BYTES);
            values.insert(
                name,
                own.chunks_exact(Values::BYTES).map(Values::from_bytes).collect::<Option<_>>()?,
            );
            rest = after;
        }
        Some(Series { stretches, values, width })
    }

    /// Adds a step. Steps from its number on that were added before are dropped: a resumed run repeats them.
    pub fn push(&mut self, step: &StepFacts) {
        while self.stretches.last().is_some_and(|last| last.step >= step.step) {
            self.stretches.pop();
            let length = self.stretches.len();
            self.values.values_mut().for_each(|values| values.truncate(length));
        }
        let width = self.width.max(1);
        let time_s = step.time_s.unwrap_or(f64::NAN);
        let new = Stretch { step: step.step, tokens: step.tokens_total, time_s, steps: 1 };
        match self.stretches.last_mut().filter(|last| last.steps < width) {
            Some(last) => *last = Stretch { steps: last.steps + 1, ..new },
            None => self.stretches.push(new),
        }
        let own = [
            ("loss", step.loss),
            ("learning rate", step.lr),
            ("gradient norm", step.grad_norm),
            ("tokens per second", step.tokens_per_s),
            ("model TFLOP/s", step.model_tflops),
            ("step seconds", step.step_s),
        ];
        let named = step.metrics.iter().map(|(name, value)| (name.as_str(), *value));
        for (name, value) in own.into_iter().chain(named) {
            if let Some(value) = value {
                self.add(name, Values::of(value));
            }
        }
        if self.stretches.len() > MOST {
            self.halve();
        }
    }

    fn add(&mut self, name: &str, value: Values) {
        let at = self.stretches.len() - 1;
        if !self.values.contains_key(name) {
            if self.values.len() >= MOST_NAMES {
                return;
            }
            self.values.insert(name.to_string(), Vec::new());
        }
        if let Some(values) = self.values.get_mut(name) {
            values.resize(at + 1, Values::NONE);
            values[at].add(value);
        }
    }

    /// Merges neighbours.
    fn halve(&mut self) {
        let merge = |pair: &[Stretch]| {
            let last = pair[pair.len() - 1];
            Stretch { steps: pair.iter().map(|of| of.steps).sum(), ..last }
        };
        self.stretches = self.stretches.chunks(2).map(merge).collect();
        for values in self.values.values_mut() {
            *values = values.chunks(2).map(sum).collect();
        }
        self.width = self.width.max(1) * 2;
    }

    /// Names of its metrics.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Number of stretches.
    pub fn len(&self) -> usize {
        self.stretches.len()
    }

    /// Whether it has no step.
    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// Returns a curve of a metric with at most `points` points: each the mean of a stretch, with its smallest and largest
    /// value, so that no spike is lost.
    pub fn curve(&self, name: &str, along: Along, points: usize) -> Curve {
        let Some(values) = self.values.get(name) else { return Curve::default() };
        let group = self.stretches.len().div_ceil(points.max(1)).max(1);
        let mut curve = Curve::default();
        for (stretches, values) in self.stretches.chunks(group).zip(values.chunks(group)) {
            let (last, all) = (stretches[stretches.len() - 1], sum(values));
            let x = match along {
                Along::Step => last.step as f64,
                Along::Tokens => last.tokens as f64,
                Along::Time => last.time_s,
            };
            if all.count > 0 && x.is_finite() {
                curve.x.push(x);
                curve.mean.push((all.sum / f64::from(all.count)) as f32);
                curve.low.push(all.low as f32);
                curve.high.push(all.high as f32);
            }
        }
        curve
    }
}

fn sum(values: &[Values]) -> Values {
    let mut all = Values::NONE;
    values.iter().for_each(|value| all.add(*value));
    all
}
