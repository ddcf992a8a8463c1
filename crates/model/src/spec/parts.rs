//! Choices within a specification.

use fathom_grad::dealable;
use fathom_tensor::{Activation, Buckets};

/// Projections of a student's hidden states to the width of its teacher's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateProjections {
    /// Number of projections.
    pub count: usize,
    /// The teacher's width.
    pub columns: usize,
}

/// Numbers of ranks that share a model's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharers {
    /// Ranks with a part of each layer's heads and columns (tensor parallel).
    pub columns: usize,
    /// Ranks with some tokens of each document (context parallel).
    pub tokens: usize,
    /// Ranks with some of the layers (pipeline parallel).
    pub layers: usize,
}

impl Sharers {
    /// One rank.
    pub const NONE: Sharers = Sharers { columns: 1, tokens: 1, layers: 1 };

    /// Checks that ranks with some tokens of each document can instead have all tokens of some heads. `shared` of them,
    /// per column share, are read by several of the `heads`.
    ///
    /// # Errors
    /// The numbers that can.
    pub fn check_deal(&self, [heads, shared]: [usize; 2], what: &str) -> Result<(), (Shared, String)> {
        if dealable(heads, shared, self.tokens) {
            return Ok(());
        }
        let good: Vec<String> = (1..=heads)
            .filter(|ranks| dealable(heads, shared, *ranks))
            .map(|ranks| ranks.to_string())
            .collect();
        let message = format!(
            "the {heads} {what} cannot be dealt to {} ranks that share a document; it may be {}",
            self.tokens,
            good.join(", ")
        );
        Err((Shared::Tokens, message))
    }
}

/// Dimension of a model along which ranks share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// Heads and columns.
    Columns,
    /// Tokens of a document.
    Tokens,
    /// Layers.
    Layers,
}

/// Tokens of its document that a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Itself and all before it.
    Causal,
    /// The same, limited to this many.
    Window(usize),
    /// All of them.
    Full,
    /// Those at most this many tokens before and after it.
    Around(usize),
}

impl Reach {
    /// The window in tokens.
    pub fn window(self) -> Option<usize> {
        match self {
            Reach::Window(tokens) => Some(tokens),
            Reach::Causal | Reach::Full | Reach::Around(_) => None,
        }
    }

    /// Returns whether a token attends to tokens after it.
    pub fn looks_ahead(self) -> bool {
        matches!(self, Reach::Full | Reach::Around(_))
    }
}

/// Placement of the norms of a block's part, and what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// A norm before the sub-layer (Llama).
    Pre,
    /// One after it, before the addition (OLMo 2).
    Post,
    /// One before and one after it (Gemma 2 and 3).
    Sandwich,
    /// One after the addition (BERT).
    Sum,
    /// One before it, of the block's input, which all such parts read (GPT-NeoX).
    Parallel,
    /// The part before's: both read its result (Phi-2, Cohere 2). A block's first part has one before it.
    SharedNorm,
    /// None: the stream is normalised already (ModernBERT's first layer).
    None,
}

impl Residual {
    /// Returns whether a part has a norm of its own before it.
    pub(crate) fn before(self, first: bool) -> bool {
        match self {
            Residual::Pre | Residual::Sandwich | Residual::Parallel => true,
            Residual::SharedNorm => first,
            Residual::Post | Residual::Sum | Residual::None => false,
        }
    }

    /// Returns whether a part has a norm after it.
    pub(crate) fn after(self) -> bool {
        matches!(self, Residual::Post | Residual::Sandwich | Residual::Sum)
    }
}

/// Constants that multiply values of a sub-layer (Falcon-H1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Factor of its input.
    pub input: f32,
    /// An MLP's gate before its activation.
    pub gate: f32,
    /// Its residual contribution.
    pub output: f32,
}

impl Factors {
    /// Ones.
    pub const NONE: Factors = Factors { input: 1.0, gate: 1.0, output: 1.0 };
}

/// Normalisation of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head alone, one weight for all heads (Qwen 3, Gemma 3).
    PerHead,
    /// All heads together (OLMo 2).
    Full,
}

/// Terms of attention scores by the distance of a key from its query (T5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionBias {
    /// Rows of the table.
    pub buckets: usize,
    /// Distance from which on all keys share a row.
    pub max_distance: usize,
    /// Whether each layer has a table (UMT5), or each stack one for all of its layers (T5).
    pub each_layer: bool,
}

impl PositionBias {
    /// The rows of distances for attention of this reach.
    pub fn rows(self, reach: Reach) -> Buckets {
        Buckets { count: self.buckets, two_sided: reach.looks_ahead(), max_distance: self.max_distance }
    }
}

/// Projections with biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// q, k and v.
    pub qkv: bool,
    /// Attention's output.
    pub attn_out: bool,
    /// MLP up and down.
    pub mlp: bool,
}

/// Settings of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mlp {
    /// Activation function.
    pub activation: Activation,
    /// Whether it is `act(gate) up` instead of `act(up)`.
    pub gated: bool,
}
