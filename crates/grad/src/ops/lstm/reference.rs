//! The definition (PyTorch's `torch.nn.LSTM`): with the sums s of the contributions of input, previous state and bias,
//! `i, f, o = sigmoid(s)`, `g = tanh(s)`, `c = f c' + i g`, `h = o tanh(c)`.

use crate::testing::Matrix;

/// z [n, 4h], weight [4h, h], bias [1, 4h] to [n, h].
pub(crate) fn lstm(z: &Matrix, weight: &Matrix, bias: &Matrix, reversed: bool) -> Matrix {
    let (n, h) = (z.rows, weight.cols);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut y, mut c, mut state) = (Matrix::zeros(n, h), vec![0.0; h], vec![0.0; h]);
    for at in 0..n {
        let row = if reversed { n - 1 - at } else { at };
        let sum = |gate: usize| {
            z[(row, gate)] + bias[(0, gate)] + (0..h).map(|k| weight[(gate, k)] * state[k]).sum::<f64>()
        };
        let sums: Vec<f64> = (0..4 * h).map(sum).collect();
        for k in 0..h {
            let [i, f, o] = [k, h + k, 3 * h + k].map(|gate| sigmoid(sums[gate]));
            c[k] = f * c[k] + i * sums[2 * h + k].tanh();
            state[k] = o * c[k].tanh();
            y[(row, k)] = state[k];
        }
    }
    y
}
