//! Keys `[rotated, shared by all heads | own]` and values of latent attention (DeepSeek-V2, 2024, eq. 12 to 18).

use super::LatentUse;
use crate::ops::rope::RopeUse;
use crate::ops::rope::reference::rope;
use crate::testing::{Matrix, Stream};

/// kv [t, heads x (own + value)], shared [t, rotated] to keys and values [t, heads x head_dim].
pub(crate) fn latent(kv: &Matrix, shared: &Matrix, stream: &Stream, how: LatentUse) -> [Matrix; 2] {
    let LatentUse { heads, own, rotated, value, table, interleaved } = how;
    let (size, width) = (rotated + own, own + value);
    let turned = rope(shared, stream, RopeUse { table, head_dim: rotated, interleaved });
    let k = Matrix::new(kv.rows, heads * size, |t, col| {
        let (head, at) = (col / size, col % size);
        if at < rotated { turned[(t, at)] } else { kv[(t, head * width + at - rotated)] }
    });
    let v = Matrix::new(kv.rows, heads * size, |t, col| {
        let (head, at) = (col / size, col % size);
        if at < value { kv[(t, head * width + own + at)] } else { 0.0 }
    });
    [k, v]
}

/// The first `cols` columns of each head.
pub(crate) fn trim(x: &Matrix, heads: usize, cols: usize) -> Matrix {
    let size = x.cols / heads;
    Matrix::new(x.rows, heads * cols, |t, col| x[(t, col / cols * size + col % cols)])
}
