//! What a model has besides blocks if it is an encoder.

use fathom_grad::Distances;
use fathom_tensor::Activation;

/// What a model has besides blocks if it is an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderParts {
    /// The row of the position table that a text's first token has: 0, or behind the row of padding (RoBERTa).
    pub first_position: usize,
    /// Rows of the table of token types; 0 for none. Tokens are of the first, those of a second text of the second.
    pub types: usize,
    /// Positions in the scores of attention.
    pub relative: Option<Relative>,
    /// A projection before the head, and its activation.
    pub pool: Option<Activation>,
    /// Rows of the head; 0 without one.
    pub labels: usize,
}

/// Disentangled attention: scores have terms by distance (DeBERTa).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    /// The rows of the table of distances.
    pub distances: Distances,
    /// Content meets the position of the key.
    pub c2p: bool,
    /// The key's content meets the position of the query.
    pub p2c: bool,
    /// Positions go through the projections of content.
    pub shared: bool,
    /// The table of distances is normalised.
    pub normed: bool,
}
