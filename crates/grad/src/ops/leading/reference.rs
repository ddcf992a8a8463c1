//! The definition.

use crate::batch::VIRTUAL;
use crate::testing::{Matrix, Stream};

/// `x` [t, c] with rows [n, c] added at virtual tokens, or in its place there.
pub(crate) fn leading(stream: &Stream, x: &Matrix, rows: &Matrix, replaces: bool) -> Matrix {
    Matrix::new(stream.tokens(), x.cols, |t, col| match (stream.ids[t] as usize).checked_sub(VIRTUAL) {
        Some(row) if replaces => rows[(row, col)],
        Some(row) => x[(t, col)] + rows[(row, col)],
        None => x[(t, col)],
    })
}
