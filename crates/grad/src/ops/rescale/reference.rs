//! `y[t, o] = x[t, o] m[o] / |W[o] + scale B[o] A| + b[o]` for the columns o of a run (Liu et al., 2024, equation 5),
//! with given norms, which are constants.

use crate::low_rank::Runs;
use crate::testing::Matrix;

/// x [t, out], m [1, columns of all runs], norms of all columns, b [1, out].
pub(crate) fn rescale(
    x: &Matrix,
    magnitude: &Matrix,
    lengths: &[f64],
    bias: Option<&Matrix>,
    runs: Runs,
) -> Matrix {
    let mut factors = vec![1.0; x.cols];
    let columns = runs.iter().flat_map(|(at, columns)| at..at + columns);
    columns.enumerate().for_each(|(index, column)| factors[column] = magnitude[(0, index)] / lengths[column]);
    Matrix::new(x.rows, x.cols, |t, o| x[(t, o)] * factors[o] + bias.map_or(0.0, |bias| bias[(0, o)]))
}
