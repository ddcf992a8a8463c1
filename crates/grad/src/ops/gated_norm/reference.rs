//! The definition: `rms(y silu(z)) w`, `rms(y) w silu(z)`, or `y silu(z)`.

use super::GatedNormUse;
use crate::testing::Matrix;

/// y, z [t, c], weight [1, c] or [1, width] to [t, c].
pub(crate) fn gated_norm(y: &Matrix, z: &Matrix, weight: Option<&Matrix>, how: GatedNormUse) -> Matrix {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let before = |t: usize, c: usize| if how.gate_first { y[(t, c)] * silu(z[(t, c)]) } else { y[(t, c)] };
    Matrix::new(y.rows, y.cols, |t, c| {
        let Some(weight) = weight else { return y[(t, c)] * silu(z[(t, c)]) };
        let first = c / how.width * how.width;
        let squares: f64 = (first..first + how.width).map(|c| before(t, c).powi(2)).sum();
        let n = before(t, c) / (squares / how.width as f64 + f64::from(how.eps)).sqrt();
        let n = n * weight[(0, c % weight.cols)];
        if how.gate_first { n } else { n * silu(z[(t, c)]) }
    })
}
