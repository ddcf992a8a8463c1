//! LayerNorm (Ba et al., 2016, eq. 3-4): `(x - mean) / sqrt(var + eps) w + b`, with the mean and the biased variance
//! of a group of columns. RMSNorm (Zhang and Sennrich, 2019, eq. 4) leaves the mean at zero. Gemma and LayerNorm1P
//! store `w - 1`. Rounding before the weight is a matter of storage and absent here.

use fathom_tensor::NormKind;

use crate::testing::Matrix;

/// x [t, groups x width], weight and bias [1, width] to the shape of x.
pub(crate) fn norm(x: &Matrix, kind: NormKind, weight: &Matrix, bias: Option<&Matrix>) -> Matrix {
    let width = weight.cols;
    let mut y = Matrix::zeros(x.rows, x.cols);
    for t in 0..x.rows {
        for start in (0..x.cols).step_by(width) {
            let group: Vec<f64> = (start..start + width).map(|col| x[(t, col)]).collect();
            let mean = if kind.centred { group.iter().sum::<f64>() / width as f64 } else { 0.0 };
            let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let deviation = (variance + f64::from(kind.eps)).sqrt();
            for (col, x) in group.iter().enumerate() {
                let factor = weight[(0, col)] + if kind.plus_one { 1.0 } else { 0.0 };
                y[(t, start + col)] = (x - mean) / deviation * factor + bias.map_or(0.0, |b| b[(0, col)]);
            }
        }
    }
    y
}
