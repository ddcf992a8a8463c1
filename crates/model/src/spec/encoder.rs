//! Parts of an encoder other than blocks.

use fathom_grad::Distances;
use fathom_tensor::Activation;

/// Parts of an encoder other than blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderParts {
    /// Row of the position table for a text's first token: 0, or after the padding row (RoBERTa).
    pub first_position: usize,
    /// Rows of the token type table; 0 for none. Tokens have the first type, those of a second text the second.
    pub types: usize,
    /// Relative positions in attention scores.
    pub relative: Option<Relative>,
    /// A projection before the head, and its activation.
    pub pool: Option<Activation>,
    /// Rows of the head; 0 without one.
    pub labels: usize,
}

/// Disentangled attention: scores have terms by distance (DeBERTa).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    /// Rows of the table of distances.
    pub distances: Distances,
    /// Content-to-position terms.
    pub c2p: bool,
    /// Position-to-content terms.
    pub p2c: bool,
    /// Whether positions share the content's projections.
    pub shared: bool,
    /// Whether the table of distances is normalised.
    pub normed: bool,
}
