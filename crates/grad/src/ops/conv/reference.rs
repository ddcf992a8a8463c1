//! The definition: per document, rows before the first are zero.

use crate::testing::{Matrix, Stream};

/// u [t, c], weight [c, taps], bias [1, c] to [t, c].
pub(crate) fn conv(
    u: &Matrix,
    weight: &Matrix,
    bias: Option<&Matrix>,
    silu: bool,
    stream: &Stream,
) -> Matrix {
    let taps = weight.cols;
    Matrix::new(u.rows, u.cols, |t, c| {
        let start = stream.document(t).start;
        let taps = (0..taps).filter(|k| t + k + 1 >= start + taps);
        let sum = taps.map(|k| weight[(c, k)] * u[(t + k + 1 - weight.cols, c)]).sum::<f64>();
        let sum = sum + bias.map_or(0.0, |bias| bias[(0, c)]);
        if silu { sum / (1.0 + (-sum).exp()) } else { sum }
    })
}
