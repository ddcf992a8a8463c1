//! How frozen weights are held in few bits.

use fathom_tensor::BlockFormat;

use super::trained::Trained;

/// How frozen weights are held.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The format.
    pub format: BlockFormat,
    /// Scales of NF4 are quantised, too, when weights are quantised while they are loaded (Dettmers et al., 2023, section 3).
    pub double: bool,
    /// Weights that are trained stay as they are; without a choice all projections are frozen.
    pub trained: Trained,
}
