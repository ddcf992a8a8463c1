//! Tensors stored quantized.

use fathom_tensor::{BlockFormat, DType};

/// A tensor stored quantized.
#[derive(Clone, Debug)]
pub struct QuantizedTensor {
    /// Storage format.
    pub format: BlockFormat,
    /// Logical sizes.
    pub shape: Vec<usize>,
    /// Type before quantization.
    pub dtype: DType,
    /// Internal name of the codes.
    pub(super) codes: String,
    pub(super) scales: Scales,
}

#[derive(Clone, Debug)]
pub(super) enum Scales {
    /// f32, per block or per row.
    Plain(String),
    /// Eight-bit codes, with the largest magnitudes of their blocks.
    Nested { codes: String, scales: String, offset: f32, map: Vec<f32> },
}
