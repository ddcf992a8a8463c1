//! Parametric laws and their fits. Logarithms are centred on the observations, which keeps the unknowns independent.

use crate::Point;
use crate::newton::{MOST, Problem, Row, Theta};

/// A law of loss over one quantity: `irreducible + scale / x^exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerLaw {
    /// `A`.
    pub scale: f64,
    /// `alpha`.
    pub exponent: f64,
    /// `E`; 0 for a law without it.
    pub irreducible: f64,
}

impl PowerLaw {
    /// Predicted loss.
    pub fn loss(&self, x: f64) -> f64 {
        self.irreducible + self.scale * x.powf(-self.exponent)
    }
}

/// Chinchilla's law: `irreducible + a / N^alpha + b / D^beta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surface {
    /// `A`.
    pub a: f64,
    /// `alpha`.
    pub alpha: f64,
    /// `B`.
    pub b: f64,
    /// `beta`.
    pub beta: f64,
    /// `E`.
    pub irreducible: f64,
}

impl Surface {
    /// Predicted loss of `params` parameters trained on `tokens` tokens.
    pub fn loss(&self, params: f64, tokens: f64) -> f64 {
        self.irreducible + self.a * params.powf(-self.alpha) + self.b * tokens.powf(-self.beta)
    }

    /// Parameters that reach the lowest loss with this many FLOPs, where a token costs `flops_per_param` per parameter
    /// (Hoffmann and others, 2022, equation 4).
    pub fn best_params(&self, flops: f64, flops_per_param: f64) -> f64 {
        let sum = self.alpha + self.beta;
        let factor = (self.alpha * self.a / (self.beta * self.b)).powf(1.0 / sum);
        factor * (flops / flops_per_param).powf(self.beta / sum)
    }

    /// Exponent of the best number of parameters over compute.
    pub fn params_exponent(&self) -> f64 {
        self.beta / (self.alpha + self.beta)
    }
}

/// Kaplan's law of parameters and tokens, without an irreducible term.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joint {
    /// `Nc`.
    pub params_scale: f64,
    /// `aN`.
    pub params_exponent: f64,
    /// `Dc`.
    pub tokens_scale: f64,
    /// `aD`.
    pub tokens_exponent: f64,
}

impl Joint {
    /// Predicted loss.
    pub fn loss(&self, params: f64, tokens: f64) -> f64 {
        let of_params = (self.params_scale / params).powf(self.params_exponent / self.tokens_exponent);
        (of_params + self.tokens_scale / tokens).powf(self.tokens_exponent)
    }
}

/// A fitted law, with what a bootstrap needs to fit it again.
#[derive(Clone, Debug)]
pub struct Law<T> {
    /// The law.
    pub law: T,
    /// Sum of Huber losses of the log residuals.
    pub objective: f64,
    /// Observed minus predicted log losses, in the order of the points.
    pub residuals: Vec<f64>,
    pub(crate) problem: Problem,
    pub(crate) theta: Theta,
    pub(crate) read: fn(&Theta, [f64; 2]) -> T,
    pub(crate) centre: [f64; 2],
}

impl<T> Law<T> {
    /// Root mean square of the log residuals: the relative error of the fit.
    pub fn rms(&self) -> f64 {
        let sum: f64 = self.residuals.iter().map(|r| r * r).sum();
        (sum / self.residuals.len() as f64).sqrt()
    }

    /// Number of unknowns.
    pub fn unknowns(&self) -> usize {
        self.problem.unknowns
    }

    /// Fits the law again to other log losses of the same points.
    pub(crate) fn again(&self, log_losses: &[f64]) -> T {
        let mut problem = self.problem.clone();
        problem.rows.iter_mut().zip(log_losses).for_each(|(row, loss)| row.log_loss = *loss);
        (self.read)(&problem.minimize(self.theta).0, self.centre)
    }

    fn found(
        problem: Problem,
        starts: impl IntoIterator<Item = Theta>,
        read: fn(&Theta, [f64; 2]) -> T,
        centre: [f64; 2],
    ) -> Option<Law<T>> {
        if problem.rows.len() < problem.unknowns || problem.rows.iter().any(|row| !row.log_loss.is_finite()) {
            return None;
        }
        let (theta, objective) = problem.minimize_from(starts)?;
        let residuals = problem.residuals(&theta);
        Some(Law { law: read(&theta, centre), objective, residuals, problem, theta, read, centre })
    }
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count().max(1) as f64
}

fn theta<const N: usize>(values: [f64; N]) -> Theta {
    let mut all = [0.0; MOST];
    all[..N].copy_from_slice(&values);
    all
}

/// Shares of the lowest loss that starts take as irreducible.
const IRREDUCIBLE: [f64; 5] = [0.05, 0.3, 0.6, 0.8, 0.95];
/// Exponents of starts.
const EXPONENTS: [f64; 4] = [0.1, 0.3, 0.6, 1.0];

/// Fits `E + A / x^alpha` to pairs of `x` and loss, or `A / x^alpha` without an irreducible term. `None` for fewer points
/// than unknowns, or for losses that are not positive numbers.
pub fn fit_power(points: &[(f64, f64)], irreducible: bool) -> Option<Law<PowerLaw>> {
    let centre = mean(points.iter().map(|point| point.0.ln()));
    let row = |(x, loss): &(f64, f64)| {
        let mut terms = vec![(theta([1.0, -(x.ln() - centre)]), 0.0)];
        terms.extend(irreducible.then(|| (theta([0.0, 0.0, 1.0]), 0.0)));
        Row { terms, log_loss: loss.ln() }
    };
    let rows: Vec<Row> = points.iter().map(row).collect();
    let lowest = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let middle = mean(points.iter().map(|point| point.1));
    let shares = if irreducible { &IRREDUCIBLE[..] } else { &[0.0] };
    let starts = shares.iter().flat_map(|share| {
        let least = share * lowest;
        EXPONENTS.map(|alpha| theta([(middle - least).max(1e-9).ln(), alpha, least.max(1e-9).ln()]))
    });
    fn with(t: &Theta, [centre, _]: [f64; 2]) -> PowerLaw {
        PowerLaw { scale: (t[0] + t[1] * centre).exp(), exponent: t[1], irreducible: t[2].exp() }
    }
    fn without(t: &Theta, centre: [f64; 2]) -> PowerLaw {
        PowerLaw { irreducible: 0.0, ..with(t, centre) }
    }
    let (unknowns, read) =
        if irreducible { (3, with as fn(&Theta, _) -> _) } else { (2, without as fn(&Theta, _) -> _) };
    Law::found(Problem { rows, unknowns, scaled: false }, starts, read, [centre, 0.0])
}

fn centres(points: &[Point]) -> [f64; 2] {
    [mean(points.iter().map(|p| p.params.ln())), mean(points.iter().map(|p| p.tokens.ln()))]
}

/// Fits Chinchilla's law. `None` for fewer than five points, or for losses that are not positive numbers.
pub fn fit_surface(points: &[Point]) -> Option<Law<Surface>> {
    let centre = centres(points);
    let row = |p: &Point| Row {
        terms: vec![
            (theta([1.0, -(p.params.ln() - centre[0])]), 0.0),
            (theta([0.0, 0.0, 1.0, -(p.tokens.ln() - centre[1])]), 0.0),
            (theta([0.0, 0.0, 0.0, 0.0, 1.0]), 0.0),
        ],
        log_loss: p.loss.ln(),
    };
    let rows = points.iter().map(row).collect();
    let lowest = points.iter().map(|p| p.loss).fold(f64::INFINITY, f64::min);
    let middle = mean(points.iter().map(|p| p.loss));
    let starts = IRREDUCIBLE.iter().flat_map(|share| {
        let least = share * lowest;
        let half = ((middle - least) / 2.0).max(1e-9).ln();
        let pairs = EXPONENTS.iter().flat_map(|alpha| EXPONENTS.map(|beta| (*alpha, beta)));
        pairs.map(move |(alpha, beta)| theta([half, alpha, half, beta, least.ln()]))
    });
    fn read(t: &Theta, centre: [f64; 2]) -> Surface {
        Surface {
            a: (t[0] + t[1] * centre[0]).exp(),
            alpha: t[1],
            b: (t[2] + t[3] * centre[1]).exp(),
            beta: t[3],
            irreducible: t[4].exp(),
        }
    }
    Law::found(Problem { rows, unknowns: 5, scaled: false }, starts, read, centre)
}

/// Fits Kaplan's law of parameters and tokens. `None` for fewer than four points, or for losses that are not positive
/// numbers.
pub fn fit_joint(points: &[Point]) -> Option<Law<Joint>> {
    let centre = centres(points);
    let row = |p: &Point| Row {
        terms: vec![
            (theta([1.0, -(p.params.ln() - centre[0])]), 0.0),
            (theta([0.0, 0.0, 1.0]), -(p.tokens.ln() - centre[1])),
        ],
        log_loss: p.loss.ln(),
    };
    let rows = points.iter().map(row).collect();
    let middle = mean(points.iter().map(|p| p.loss.ln()));
    let starts = EXPONENTS.iter().flat_map(|power| {
        let half = middle / power - std::f64::consts::LN_2;
        [0.3, 1.0, 3.0].map(|ratio| theta([half, ratio, half, *power]))
    });
    fn read(t: &Theta, centre: [f64; 2]) -> Joint {
        let (ratio, power) = (t[1], t[3]);
        Joint {
            params_scale: (t[0] / ratio + centre[0]).exp(),
            params_exponent: ratio * power,
            tokens_scale: (t[2] + centre[1]).exp(),
            tokens_exponent: power,
        }
    }
    Law::found(Problem { rows, unknowns: 4, scaled: true }, starts, read, centre)
}
