//! Parts of an encoder other than blocks.

use fathom_grad::Distances;
use fathom_tensor::Activation;

/// Parts of an encoder other than blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderParts {
    /// Row of the position table for a text's first token: 0, or after the padding row (RoBERTa).
    pub first_position: usize,
    /// Columns of embeddings, if a projection makes them those of the blocks (ELECTRA).
    pub embedding: Option<usize>,
    /// Rows of the token type table; 0 for none. Tokens have the first type, those of a second text the second.
    pub types: usize,
    /// Relative positions in attention scores.
    pub relative: Option<Relative>,
    /// Activation of the projection before the head, if there is one.
    pub pool: Option<Activation>,
    /// Whether that projection has a bias.
    pub pool_bias: bool,
    /// Whether a norm follows the activation.
    pub pool_norm: bool,
    /// Whether labels of a text read the mean of its rows, not its first row (ModernBERT).
    pub mean: bool,
    /// The head.
    pub head: EncoderHead,
}

/// Head of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderHead {
    /// None: hidden states are the result.
    None,
    /// The vocabulary at each token, by the table of the embedding (masked-language modelling).
    Masked,
    /// This many labels of a text.
    Text(usize),
    /// This many labels of each token.
    Tokens(usize),
}

impl EncoderHead {
    /// Number of labels; 0 for other heads.
    pub fn labels(self) -> usize {
        match self {
            EncoderHead::Text(labels) | EncoderHead::Tokens(labels) => labels,
            EncoderHead::None | EncoderHead::Masked => 0,
        }
    }
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
