//! Extents of an attention, and of its blocks.

/// Keys per block; blocks start at absolute multiples of it.
pub(super) const KEYS: usize = fathom_tensor::PAGE_ROWS;
/// Rows that pass through the score block at a time, and the granule to which masked blocks are cut.
pub(super) const SUB: usize = 32;

/// Extents of one attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of q.
    pub q_tokens: usize,
    /// Rows of k and v.
    pub k_tokens: usize,
    /// Query heads, a multiple of `kv_heads`; head h reads key head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head, 1 to 512.
    pub head_dim: usize,
    /// Distance from which on all keys have the same bias; 0 without biases, or if they have no end.
    pub span: usize,
}

impl Shape {
    /// Query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}
