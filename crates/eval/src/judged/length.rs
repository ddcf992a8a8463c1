//! The win rate that AlpacaEval 2 calls length-controlled: a logistic regression of the preference over the difference of
//! lengths, the difficulty of the instruction where it is known, and a constant, from which the first is taken out.
//!
//! The penalty is the sum of the weights' magnitudes; its strength is the best of ten over five folds, by the likelihood of
//! preferences that were left out. AlpacaEval solves the same problem by liblinear to a tolerance of 1e-4, and adds the
//! comparisons of two models that game its own 805 instructions; here the optimum is exact, and all instructions are the
//! user's.

use crate::metrics::aggregate::{deviation, mean};

/// Folds of the choice of the penalty.
const FOLDS: usize = 5;
/// Strengths: ten from 1e-4 to 1e4, evenly by their logarithm.
const STRENGTHS: usize = 10;
/// Steps of a fit, at most.
const STEPS: usize = 200;
/// Probabilities are at least this far from 0 and 1 where their logarithm is taken.
const EPSILON: f64 = 1e-15;
/// Features of a comparison.
const FEATURES: usize = 3;

type Vector = [f64; FEATURES];

/// An answer that was compared with another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Preference for the answer, from 0 to 1, as the mean over both orders.
    pub preference: f64,
    /// True if both orders say the same.
    pub agrees: bool,
    /// Characters of the answer and of the other one.
    pub lengths: [usize; 2],
    /// Difficulty of the instruction, if it is known.
    pub difficulty: Option<f64>,
}

/// A regression: the weights of length, difficulty and the constant, and how much the data weighs against the penalty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Weights.
    pub weights: Vector,
    /// Factor of the likelihood.
    pub strength: f64,
}

/// The regression over comparisons; `None` for fewer than there are folds.
pub fn fit(all: &[Judgement]) -> Option<Fit> {
    if all.len() < FOLDS {
        return None;
    }
    let rows = rows(all);
    // The fold that `GroupKFold` gives a group of one size: it deals them from the last to the first.
    let fold = |at: usize| (rows.len() - 1 - at) % FOLDS;
    let mut best = (f64::INFINITY, 0.0);
    for step in 0..STRENGTHS {
        let strength = 10f64.powf(-4.0 + 8.0 * step as f64 / (STRENGTHS - 1) as f64);
        let mut loss = 0.0;
        for left_out in 0..FOLDS {
            let part = |own: bool| -> Vec<(Vector, f64)> {
                rows.iter().enumerate().filter(|it| (fold(it.0) == left_out) == own).map(|it| *it.1).collect()
            };
            let weights = solved(&part(false), strength);
            let losses: Vec<f64> = part(true).iter().map(|row| cross_entropy(row, &weights)).collect();
            loss += mean(&losses);
        }
        if loss < best.0 {
            best = (loss, strength);
        }
    }
    Some(Fit { weights: solved(&rows, best.1), strength: best.1 })
}

impl Fit {
    /// The regression over other comparisons with the same strength.
    pub fn again(&self, all: &[Judgement]) -> Fit {
        Fit { weights: solved(&rows(all), self.strength), ..*self }
    }

    /// Mean preference if all answers were as long as the others.
    pub fn rate(&self, all: &[Judgement]) -> f64 {
        let one = |row: &(Vector, f64)| logistic(dot(&[0.0, row.0[1], row.0[2]], &self.weights));
        mean(&rows(all).iter().map(one).collect::<Vec<_>>())
    }
}

/// Features and preferences. Differences of lengths are in standard deviations, within -1 and 1.
fn rows(all: &[Judgement]) -> Vec<(Vector, f64)> {
    let differences: Vec<f64> = all.iter().map(|it| it.lengths[1] as f64 - it.lengths[0] as f64).collect();
    let spread = deviation(&differences);
    let scaled = |difference: f64| if spread > 0.0 { (difference / spread).tanh() } else { 0.0 };
    let row = |(it, difference): (&Judgement, &f64)| {
        ([scaled(*difference), it.difficulty.unwrap_or(0.0), 1.0], it.preference)
    };
    all.iter().zip(&differences).map(row).collect()
}

fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn logistic(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

fn cross_entropy((features, preference): &(Vector, f64), weights: &Vector) -> f64 {
    let p = logistic(dot(features, weights)).clamp(EPSILON, 1.0 - EPSILON);
    -(preference * p.ln() + (1.0 - preference) * (1.0 - p).ln())
}

/// Penalty and weighted loss.
fn objective(rows: &[(Vector, f64)], weights: &Vector, strength: f64) -> f64 {
    let one = |(features, preference): &(Vector, f64)| {
        let z = dot(features, weights);
        // log(1 + e^z) - y z, without overflow.
        z.max(0.0) + (-z.abs()).exp().ln_1p() - preference * z
    };
    strength * rows.iter().map(one).sum::<f64>() + weights.iter().map(|weight| weight.abs()).sum::<f64>()
}

/// The optimum, by Newton steps whose quadratic problems, with the penalty, are solved by coordinates.
fn solved(rows: &[(Vector, f64)], strength: f64) -> Vector {
    let mut weights = [0.0; FEATURES];
    let mut value = objective(rows, &weights, strength);
    for _ in 0..STEPS {
        let (mut slope, mut curve) = ([0.0; FEATURES], [[0.0; FEATURES]; FEATURES]);
        for (features, preference) in rows {
            let p = logistic(dot(features, &weights));
            for i in 0..FEATURES {
                slope[i] += strength * (p - preference) * features[i];
                for j in 0..FEATURES {
                    curve[i][j] += strength * p * (1.0 - p) * features[i] * features[j];
                }
            }
        }
        let step = stepped(&weights, &slope, &curve);
        let mut share = 1.0;
        let mut next = value;
        let mut moved = weights;
        while share > 1e-10 {
            moved = std::array::from_fn(|i| weights[i] + share * step[i]);
            next = objective(rows, &moved, strength);
            if next <= value {
                break;
            }
            share /= 2.0;
        }
        if next > value {
            break;
        }
        let largest = moved.iter().zip(&weights).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        (weights, value) = (moved, next);
        if largest < 1e-13 {
            break;
        }
    }
    weights
}

/// The step that minimises the quadratic model with the penalty.
fn stepped(weights: &Vector, slope: &Vector, curve: &[Vector; FEATURES]) -> Vector {
    let mut step = [0.0; FEATURES];
    for _ in 0..10_000 {
        let mut largest = 0.0f64;
        for i in 0..FEATURES {
            let bend = curve[i][i] + 1e-12;
            let pull = slope[i] + dot(&curve[i], &step) - curve[i][i] * step[i];
            // The best weight of this feature alone, drawn towards 0 by the penalty.
            let free = weights[i] * bend - pull;
            let weight = free.signum() * (free.abs() - 1.0).max(0.0) / bend;
            let new = weight - weights[i];
            largest = largest.max((new - step[i]).abs());
            step[i] = new;
        }
        if largest < 1e-14 {
            break;
        }
    }
    step
}
