//! `y[t, o] = sum_i x[t, i] W[o, i] + b[o]`: the affine layer with weights as checkpoints store them (PyTorch,
//! `torch.nn.Linear`).

use crate::testing::Matrix;

/// x [t, in], weight [out, in], bias [1, out] to [t, out].
pub(crate) fn linear(x: &Matrix, weight: &Matrix, bias: Option<&Matrix>) -> Matrix {
    Matrix::new(x.rows, weight.rows, |t, o| {
        let product: f64 = (0..x.cols).map(|i| x[(t, i)] * weight[(o, i)]).sum();
        product + bias.map_or(0.0, |bias| bias[(0, o)])
    })
}
