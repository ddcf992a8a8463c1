//! A use of attention in a block.

/// Where the keys and values of attention come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// The rows of the batch: in generation they join those of earlier tokens, and ranks of a context exchange them.
    Own,
    /// Rows of a [`Memory`](crate::Memory): all of them, or in a context this rank's, which ranks gather.
    Memory,
}

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionUse {
    /// Where its keys come from.
    pub keys: Keys,
    /// Index of the batch's mask.
    pub mask: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Multiplies q k.
    pub scale: f32,
    /// `cap tanh(s / cap)`; 0 for none.
    pub softcap: f32,
    /// Set for attention to later tokens: the number of such masks in a model. A batch has this many for all documents
    /// together, or this many for each document, which then attends separately: its result does not depend on concurrent
    /// documents.
    pub apart: Option<usize>,
    /// Whether the batch's slopes by distance ([`Batch::slopes`](crate::Batch::slopes)) are added to scores.
    pub slopes: bool,
}
