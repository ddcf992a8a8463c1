//! A micro batch: one packed stream of tokens with its positions and masks, no padding.

use fathom_tensor::{Mask, Tensor};

/// Token ids, positions, masks and rotary tables of one micro batch. What depends on the model (how many masks,
/// which rotary tables) is listed in the order in which its layers refer to it.
pub struct Batch {
    /// Number of tokens.
    pub tokens: usize,
    /// i32 [1, t].
    pub ids: Tensor,
    /// i32 [1, t].
    pub positions: Tensor,
    /// One per distinct window.
    pub masks: Vec<Mask>,
    /// f32 [t, rot], one per distinct rotary setting.
    pub ropes: Vec<Tensor>,
}
