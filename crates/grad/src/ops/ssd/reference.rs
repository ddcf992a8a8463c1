//! The definition, row by row.

use super::SsdUse;
use crate::testing::{Matrix, Stream};

/// u [t, heads x width + 2 x groups x state], dt [t, heads], weights a_log, dt_bias and d [1, heads] to
/// [t, heads x width].
pub(crate) fn ssd(u: &Matrix, dt: &Matrix, weights: &[Matrix], how: SsdUse, stream: &Stream) -> Matrix {
    let (heads, n, groups) = (dt.cols, how.state, how.groups);
    let inner = u.cols - 2 * groups * n;
    let width = inner / heads;
    let mut y = Matrix::zeros(u.rows, inner);
    for head in 0..heads {
        let [a_log, bias, d] = [0, 1, 2].map(|index: usize| weights[index][(0, head)]);
        let (b, c) = (inner + head / (heads / groups) * n, inner + (groups + head / (heads / groups)) * n);
        let mut state = vec![0.0; n * width];
        for t in 0..u.rows {
            if stream.document(t).start == t {
                state.fill(0.0);
            }
            let raw = dt[(t, head)] + bias;
            let soft = if raw > 20.0 { raw } else { raw.exp().ln_1p() };
            let delta = soft.clamp(f64::from(how.limit[0]), f64::from(how.limit[1]));
            let decay = (-a_log.exp() * delta).exp();
            for p in 0..width {
                let x = u[(t, head * width + p)];
                let mut sum = d * x;
                for k in 0..n {
                    let s = &mut state[k * width + p];
                    *s = decay * *s + delta * x * u[(t, b + k)];
                    sum += *s * u[(t, c + k)];
                }
                y[(t, head * width + p)] = sum;
            }
        }
    }
    y
}
