//! Two layers with an activation between them, on one rank: the sum of the parts of several ranks.

use crate::ops::linear::reference::linear;
use crate::testing::Matrix;

/// `relu(x up^T + b) down^T + c`: x [t, d], up [f, d], down [d, f].
pub(crate) fn mlp(x: &Matrix, [up, up_bias, down, down_bias]: [&Matrix; 4]) -> Matrix {
    let u = linear(x, up, Some(up_bias));
    let act = Matrix::new(u.rows, u.cols, |row, col| u[(row, col)].max(0.0));
    linear(&act, down, Some(down_bias))
}
