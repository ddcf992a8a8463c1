//! `factor x` (Granite 3.0's residual and embedding multipliers).

use crate::testing::Matrix;

/// Any shape.
pub(crate) fn scale(x: &Matrix, factor: f32) -> Matrix {
    Matrix::new(x.rows, x.cols, |t, col| f64::from(factor) * x[(t, col)])
}
