//! The minimiser of all fits: Newton's method with Levenberg's damping.
//!
//! A prediction of a log loss is `s * log(sum_k exp(c_k . theta))`: the terms are linear in the unknowns, of which there
//! are at most five. Gradient and Hessian are exact, so that a fit is as precise as its arithmetic.

/// Residuals of the log loss beyond this count linearly (Hoffmann and others, 2022).
pub const HUBER_DELTA: f64 = 1e-3;
/// Most unknowns of a law.
pub(crate) const MOST: usize = 5;
const ITERATIONS: usize = 400;

/// Unknowns of a law; those that it lacks are zero.
pub(crate) type Theta = [f64; MOST];

/// An observed log loss, and the linear form of each term of its prediction.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Coefficients of the unknowns, and a constant.
    pub terms: Vec<(Theta, f64)>,
    pub log_loss: f64,
}

/// Observations, and the number of unknowns. If `scaled`, the last unknown multiplies the logarithm of the sum.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub rows: Vec<Row>,
    pub unknowns: usize,
    pub scaled: bool,
}

/// Value, gradient and Hessian.
struct Local {
    value: f64,
    gradient: Theta,
    hessian: [Theta; MOST],
}

impl Local {
    const ZERO: Local = Local { value: 0.0, gradient: [0.0; MOST], hessian: [[0.0; MOST]; MOST] };
}

fn dot(a: &Theta, b: &Theta) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Problem {
    /// Predicted log loss of a row.
    pub fn predict(&self, row: &Row, theta: &Theta) -> f64 {
        self.local_of(row, theta).value
    }

    /// Observed minus predicted log losses.
    pub fn residuals(&self, theta: &Theta) -> Vec<f64> {
        self.rows.iter().map(|row| row.log_loss - self.predict(row, theta)).collect()
    }

    fn local_of(&self, row: &Row, theta: &Theta) -> Local {
        let forms: Vec<f64> = row.terms.iter().map(|(term, constant)| dot(term, theta) + constant).collect();
        let top = forms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = forms.iter().map(|form| (form - top).exp()).collect();
        let sum: f64 = shares.iter().sum();
        let mut of = Local { value: top + sum.ln(), ..Local::ZERO };
        for ((term, _), share) in row.terms.iter().zip(&shares) {
            let share = share / sum;
            for i in 0..MOST {
                of.gradient[i] += share * term[i];
                for j in 0..MOST {
                    of.hessian[i][j] += share * term[i] * term[j];
                }
            }
        }
        for i in 0..MOST {
            for j in 0..MOST {
                of.hessian[i][j] -= of.gradient[i] * of.gradient[j];
            }
        }
        if self.scaled { times_last(of, theta[self.unknowns - 1], self.unknowns - 1) } else { of }
    }

    fn local(&self, theta: &Theta) -> Local {
        let mut all = Local::ZERO;
        for row in &self.rows {
            let of = self.local_of(row, theta);
            let (value, slope, curve) = huber(of.value - row.log_loss);
            all.value += value;
            for i in 0..MOST {
                all.gradient[i] += slope * of.gradient[i];
                for j in 0..MOST {
                    all.hessian[i][j] += curve * of.gradient[i] * of.gradient[j] + slope * of.hessian[i][j];
                }
            }
        }
        all
    }

    /// Returns the nearest minimum downhill of a start, and the value there.
    pub fn minimize(&self, start: Theta) -> (Theta, f64) {
        let (mut theta, mut damping) = (start, 1e-3);
        let mut here = self.local(&theta);
        for _ in 0..ITERATIONS {
            let Some(step) = self.step(&here, damping) else {
                damping = (damping * 10.0f64).max(1e-12);
                if damping > 1e18 {
                    break;
                }
                continue;
            };
            let mut next = theta;
            next.iter_mut().zip(&step).for_each(|(at, step)| *at += step);
            let there = self.local(&next);
            // At the minimum steps are below the resolution of the value.
            let tiny = step.iter().zip(&theta).all(|(step, at)| step.abs() <= 1e-15 * (1.0 + at.abs()));
            if there.value.is_finite() && there.value <= here.value {
                (theta, here) = (next, there);
                damping = if damping < 1e-14 { 0.0 } else { damping / 8.0 };
            } else {
                damping = (damping * 6.0).max(1e-12);
            }
            if tiny || damping > 1e18 {
                break;
            }
        }
        (theta, here.value)
    }

    /// Returns the best minimum from several starts.
    pub fn minimize_from(&self, starts: impl IntoIterator<Item = Theta>) -> Option<(Theta, f64)> {
        let found = starts.into_iter().map(|start| self.minimize(start));
        found.filter(|(_, value)| value.is_finite()).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Solves for the damped step; `None` if the damped Hessian is not positive definite.
    fn step(&self, local: &Local, damping: f64) -> Option<Theta> {
        let n = self.unknowns;
        let mut matrix = local.hessian;
        for i in 0..n {
            matrix[i][i] += damping * matrix[i][i].abs().max(1e-12);
        }
        let mut lower = [[0.0; MOST]; MOST];
        for i in 0..n {
            for j in 0..=i {
                let sum: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
                let rest = matrix[i][j] - sum;
                if i == j {
                    if rest.is_nan() || rest <= 1e-14 * matrix[i][i].abs() || rest <= 0.0 {
                        return None;
                    }
                    lower[i][i] = rest.sqrt();
                } else {
                    lower[i][j] = rest / lower[j][j];
                }
            }
        }
        let mut step = [0.0; MOST];
        for i in 0..n {
            let sum: f64 = (0..i).map(|k| lower[i][k] * step[k]).sum();
            step[i] = (-local.gradient[i] - sum) / lower[i][i];
        }
        for i in (0..n).rev() {
            let sum: f64 = (i + 1..n).map(|k| lower[k][i] * step[k]).sum();
            step[i] = (step[i] - sum) / lower[i][i];
        }
        step.iter().all(|x| x.is_finite()).then_some(step)
    }
}

/// Multiplies a local model of a function of the other unknowns by the unknown `at`.
fn times_last(of: Local, factor: f64, at: usize) -> Local {
    let mut out = Local { value: factor * of.value, ..Local::ZERO };
    for i in 0..at {
        out.gradient[i] = factor * of.gradient[i];
        out.hessian[i][at] = of.gradient[i];
        out.hessian[at][i] = of.gradient[i];
        for j in 0..at {
            out.hessian[i][j] = factor * of.hessian[i][j];
        }
    }
    out.gradient[at] = of.value;
    out
}

/// Huber loss of a residual, its slope and its curvature.
fn huber(r: f64) -> (f64, f64, f64) {
    if r.abs() <= HUBER_DELTA {
        (r * r / 2.0, r, 1.0)
    } else {
        (HUBER_DELTA * (r.abs() - HUBER_DELTA / 2.0), HUBER_DELTA * r.signum(), 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradient_and_hessian_agree_with_finite_differences() {
        let row = Row {
            terms: vec![([1.0, -2.0, 0.0, 0.0, 0.0], 0.0), ([0.0, 0.0, 1.0, 0.0, 0.0], -0.4)],
            log_loss: 0.7,
        };
        for scaled in [false, true] {
            let problem = Problem { rows: vec![row.clone()], unknowns: if scaled { 4 } else { 3 }, scaled };
            let theta = [0.3, 0.2, 0.6, 0.9, 0.0];
            let of = problem.local_of(&row, &theta);
            for i in 0..problem.unknowns {
                let shifted = |by: f64| {
                    let mut at = theta;
                    at[i] += by;
                    problem.local_of(&row, &at)
                };
                let (less, more) = (shifted(-1e-6), shifted(1e-6));
                assert!(((more.value - less.value) / 2e-6 - of.gradient[i]).abs() < 1e-8);
                for j in 0..problem.unknowns {
                    let slope = (more.gradient[j] - less.gradient[j]) / 2e-6;
                    assert!((slope - of.hessian[i][j]).abs() < 1e-8, "{scaled} {i} {j}");
                }
            }
        }
    }
}
