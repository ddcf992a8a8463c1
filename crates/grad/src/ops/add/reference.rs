//! `a + b` of equal shapes: the residual connection (He et al., 2015, eq. 1).

use crate::testing::Matrix;

/// Both [t, d].
pub(crate) fn add(a: &Matrix, b: &Matrix) -> Matrix {
    Matrix::new(a.rows, a.cols, |t, col| a[(t, col)] + b[(t, col)])
}
