//! The definition, row by row.

use super::DeltaUse;
use crate::testing::{Matrix, Stream};

/// u [t, 2 x key_heads x key + heads x value], a and b [t, heads], weights a_log and dt_bias [1, heads] to
/// [t, heads x value].
pub(crate) fn delta([u, a, b]: [&Matrix; 3], weights: &[Matrix], how: DeltaUse, stream: &Stream) -> Matrix {
    let (heads, key) = (a.cols, how.key);
    let first = 2 * how.key_heads * key;
    let value = (u.cols - first) / heads;
    let mut out = Matrix::zeros(u.rows, heads * value);
    let unit = |t: usize, from: usize| -> Vec<f64> {
        let x: Vec<f64> = (0..key).map(|k| u[(t, from + k)]).collect();
        let length = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(how.l2_eps)).sqrt();
        x.iter().map(|x| x / length).collect()
    };
    for head in 0..heads {
        let of = head / (heads / how.key_heads);
        let mut state = vec![0.0; key * value];
        for t in 0..u.rows {
            if stream.document(t).start == t {
                state.fill(0.0);
            }
            let soft = (a[(t, head)] + weights[1][(0, head)]).exp().ln_1p();
            let decay = (-weights[0][(0, head)].exp() * soft).exp();
            let step = f64::from(how.beta) / (1.0 + (-b[(t, head)]).exp());
            let (q, k) = (unit(t, of * key), unit(t, (how.key_heads + of) * key));
            for v in 0..value {
                let column =
                    |state: &[f64], x: &[f64]| -> f64 { (0..key).map(|k| state[k * value + v] * x[k]).sum() };
                (0..key).for_each(|k| state[k * value + v] *= decay);
                let error = step * (u[(t, first + head * value + v)] - column(&state, &k));
                (0..key).for_each(|at| state[at * value + v] += k[at] * error);
                out[(t, head * value + v)] = column(&state, &q) / (key as f64).sqrt();
            }
        }
    }
    out
}
