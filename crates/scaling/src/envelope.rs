//! Chinchilla's first approach: the lowest of all training curves at each compute.

/// The training curve of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Parameters.
    pub params: f64,
    /// FLOPs of a token.
    pub flops_per_token: f64,
    /// Tokens and smoothed loss, by ascending tokens.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// Returns the loss after this many tokens, interpolated in their logarithm; `None` outside the curve.
    fn loss(&self, tokens: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.0 < tokens);
        let right = self.points.get(after)?;
        if right.0 == tokens {
            return Some(right.1);
        }
        let left = self.points.get(after.checked_sub(1)?)?;
        let share = (tokens / left.0).ln() / (right.0 / left.0).ln();
        Some(left.1 + share * (right.1 - left.1))
    }

    fn flops(&self) -> Option<(f64, f64)> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        Some((first.0 * self.flops_per_token, last.0 * self.flops_per_token))
    }
}

/// The best run at one compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frontier {
    /// FLOPs.
    pub flops: f64,
    /// Parameters of the best run.
    pub params: f64,
    /// Its tokens so far.
    pub tokens: f64,
    /// Its loss.
    pub loss: f64,
}

/// Returns the lowest loss at `count` values of compute, equally spaced in their logarithm, from where two curves of
/// different sizes have started to the end of the longest.
pub fn envelope(curves: &[Curve], count: usize) -> Vec<Frontier> {
    let mut begins: Vec<(f64, f64)> =
        curves.iter().filter_map(|curve| Some((curve.flops()?.0, curve.params))).collect();
    begins.sort_by(|a, b| a.0.total_cmp(&b.0));
    let second = begins.iter().find(|begin| begins.first().is_some_and(|first| first.1 != begin.1));
    let end = curves.iter().filter_map(|curve| Some(curve.flops()?.1)).fold(0.0, f64::max);
    let Some(low) = second.map(|second| second.0).filter(|low| *low > 0.0 && *low < end && count > 1) else {
        return Vec::new();
    };
    let at = |index: usize| {
        let share = index as f64 / (count - 1) as f64;
        if index + 1 == count { end } else { low * (end / low).powf(share) }
    };
    let best = |flops: f64| {
        let losses = curves.iter().filter_map(|curve| {
            let tokens = flops / curve.flops_per_token;
            Some(Frontier { flops, params: curve.params, tokens, loss: curve.loss(tokens)? })
        });
        losses.min_by(|a, b| a.loss.total_cmp(&b.loss))
    };
    (0..count).filter_map(|index| best(at(index))).collect()
}
