//! Storage of frozen weights as quantized.

use fathom_tensor::BlockFormat;

use super::trained::TrainableWeights;

/// Storage format of frozen weights.
#[derive(Clone, Debug)]
pub struct Quantization {
    /// The format.
    pub format: BlockFormat,
    /// Whether NF4's scales are quantized too when weights are quantized while loading (Dettmers et al., 2023,
    /// section 3).
    pub double: bool,
    /// Trained weights, which are not quantized; by default all projections are frozen.
    pub trained: TrainableWeights,
}
