//! `a b`, element by element (the gates of LFM2's short convolutions).

use crate::testing::Matrix;

/// Both [t, n].
pub(crate) fn product(a: &Matrix, b: &Matrix) -> Matrix {
    Matrix::new(a.rows, a.cols, |t, col| a[(t, col)] * b[(t, col)])
}
