//! `out = sum over slots of weight x y`: the mixture of experts (Jacobs et al., 1991).

use crate::testing::Matrix;

/// y [t, k x d], weights [t, k] to [t, d].
pub(crate) fn combine(y: &Matrix, weights: &Matrix) -> Matrix {
    let d = y.cols / weights.cols;
    Matrix::new(y.rows, d, |t, col| {
        (0..weights.cols).map(|slot| weights[(t, slot)] * y[(t, slot * d + col)]).sum()
    })
}
