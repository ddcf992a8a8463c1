//! A use of attention in a block.

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionUse {
    /// Index of the batch's mask.
    pub mask: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Multiplies q k.
    pub scale: f32,
    /// `cap tanh(s / cap)`; 0 for none.
    pub softcap: f32,
    /// True if each document attends separately, under a mask of its own from `mask` on: its result does not depend on
    /// concurrent documents.
    pub apart: bool,
}
