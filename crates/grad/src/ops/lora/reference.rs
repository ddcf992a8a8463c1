//! `y[t, o] = sum_i x[t, i] (W[o, i] + scale sum_r B[o, r] A[r, i]) + b[o]` for the columns o of a run, with the run's own A and B
//! (Hu et al., 2021, equation 3).

use super::Runs;
use crate::ops::linear::reference::linear;
use crate::testing::Matrix;

/// x [t, in], A [runs x rank, in], B [columns of all runs, rank], W [out, in], b [1, out] to [t, out].
pub(crate) fn lora(x: &Matrix, params: &[Matrix], scale: f64, runs: Runs) -> Matrix {
    linear(x, &adapted(params, scale, runs), params.get(3))
}

/// W with the adapters' terms added.
pub(crate) fn adapted(params: &[Matrix], scale: f64, runs: Runs) -> Matrix {
    let (a, b, mut weight) = (&params[0], &params[1], params[2].clone());
    let (rank, cols, mut first) = (b.cols, weight.cols, 0);
    for (index, (at, columns)) in runs.iter().enumerate() {
        for (row, i) in (0..columns).flat_map(|row| (0..cols).map(move |i| (row, i))) {
            let low = |r: usize| b[(first + row, r)] * a[(index * rank + r, i)];
            weight[(at + row, i)] += scale * (0..rank).map(low).sum::<f64>();
        }
        first += columns;
    }
    weight
}
