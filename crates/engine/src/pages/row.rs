//! Sizes of rows.

use fathom_tensor::Tensor;

/// Bytes of a row of a layer's keys or values; 0 for another rank's layers.
pub(super) fn row_bytes(tensor: &Tensor) -> usize {
    tensor.cols() * tensor.dtype().bytes()
}
