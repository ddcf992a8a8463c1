//! Chinchilla's second approach: for each compute budget, a parabola of the loss in the logarithm of the size.

use crate::Point;

/// Runs of one compute budget, and the size that their parabola favours.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// FLOPs of the budget: the geometric mean of its runs.
    pub flops: f64,
    /// Runs by ascending size.
    pub points: Vec<Point>,
    /// `loss = c[0] + c[1] ln N + c[2] (ln N)^2`.
    pub coefficients: [f64; 3],
    /// Parameters and loss at the lowest point of the parabola; `None` if it has none, or none between the smallest and the
    /// largest size.
    pub best: Option<(f64, f64)>,
}

/// A power law of the best size over compute: `params = scale * flops^exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allocation {
    /// Factor.
    pub scale: f64,
    /// Exponent.
    pub exponent: f64,
}

impl Allocation {
    /// Best number of parameters for a compute budget.
    pub fn params(&self, flops: f64) -> f64 {
        self.scale * flops.powf(self.exponent)
    }
}

/// Fits a parabola to each budget's runs. Budgets with fewer than three sizes are left out.
pub fn profiles(budgets: &[Vec<Point>]) -> Vec<Profile> {
    budgets.iter().filter_map(|points| profile(points)).collect()
}

fn profile(points: &[Point]) -> Option<Profile> {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.params.total_cmp(&b.params));
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return None };
    let (low, high, count) = (first.params.ln(), last.params.ln(), points.len() as f64);
    let middle = points.iter().map(|p| p.params.ln()).sum::<f64>() / count;
    let pairs: Vec<(f64, f64)> = points.iter().map(|p| (p.params.ln() - middle, p.loss)).collect();
    let [c0, c1, c2] = parabola(&pairs)?;
    let flops = (points.iter().map(|p| p.flops.ln()).sum::<f64>() / count).exp();
    let at = -c1 / (2.0 * c2);
    let is_lowest = c2 > 0.0 && (low..=high).contains(&(at + middle));
    let best = is_lowest.then(|| ((at + middle).exp(), c0 + c1 * at + c2 * at * at));
    // Expanded around zero instead of the middle.
    let coefficients = [c0 - c1 * middle + c2 * middle * middle, c1 - 2.0 * c2 * middle, c2];
    Some(Profile { flops, points, coefficients, best })
}

/// Least squares of `y` over 1, `x` and `x^2`, by elimination; `None` for fewer than three different `x`.
fn parabola(pairs: &[(f64, f64)]) -> Option<[f64; 3]> {
    let mut rows = [[0.0; 4]; 3];
    for (x, y) in pairs {
        let powers = [1.0, *x, x * x];
        for i in 0..3 {
            for j in 0..3 {
                rows[i][j] += powers[i] * powers[j];
            }
            rows[i][3] += powers[i] * y;
        }
    }
    for i in 0..3 {
        let pivot = (i..3).max_by(|a, b| rows[*a][i].abs().total_cmp(&rows[*b][i].abs()))?;
        rows.swap(i, pivot);
        if rows[i][i].abs() <= 1e-12 * pairs.len() as f64 {
            return None;
        }
        for j in 0..3 {
            if j != i {
                let factor = rows[j][i] / rows[i][i];
                for k in i..4 {
                    rows[j][k] -= factor * rows[i][k];
                }
            }
        }
    }
    Some([rows[0][3] / rows[0][0], rows[1][3] / rows[1][1], rows[2][3] / rows[2][2]])
}

/// Fits the best size over compute to pairs of FLOPs and parameters, by least squares of the logarithms. `None` for fewer
/// than two different budgets.
pub fn allocation(best: &[(f64, f64)]) -> Option<Allocation> {
    let count = best.len() as f64;
    let logs = best.iter().map(|(flops, params)| (flops.ln(), params.ln()));
    let (x, y) = logs.clone().fold((0.0, 0.0), |(x, y), at| (x + at.0 / count, y + at.1 / count));
    let (mut xx, mut xy) = (0.0, 0.0);
    for (a, b) in logs {
        xx += (a - x) * (a - x);
        xy += (a - x) * (b - y);
    }
    let exponent = xy / xx;
    exponent.is_finite().then(|| Allocation { scale: (y - exponent * x).exp(), exponent })
}
