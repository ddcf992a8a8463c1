//! Choices within a specification.

use fathom_tensor::Activation;

/// Projections of a student's hidden states to the width of its teacher's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateProjections {
    /// Number of projections.
    pub count: usize,
    /// The teacher's width.
    pub columns: usize,
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
}

impl Reach {
    /// The window in tokens.
    pub fn window(self) -> Option<usize> {
        match self {
            Reach::Window(tokens) => Some(tokens),
            Reach::Causal | Reach::Full => None,
        }
    }
}

/// Placement of norms in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// Before attention and before the MLP (Llama).
    Pre,
    /// After each, before the addition (OLMo 2).
    Post,
    /// Before and after each (Gemma 2 and 3).
    Sandwich,
    /// After each addition (BERT).
    Sum,
    /// Before each; both read the block's input (GPT-NeoX).
    Parallel,
    /// Once for both, which read the block's input (Phi-2, Cohere 2).
    SharedNorm,
}

impl Residual {
    /// Returns whether there are norms before and after the mixer.
    pub fn attention(self) -> [bool; 2] {
        [!matches!(self, Residual::Post | Residual::Sum), self.after()]
    }

    /// Returns whether there are norms before and after the feed-forward network.
    pub fn mlp(self) -> [bool; 2] {
        [!matches!(self, Residual::Post | Residual::Sum | Residual::SharedNorm), self.after()]
    }

    fn after(self) -> bool {
        matches!(self, Residual::Post | Residual::Sandwich | Residual::Sum)
    }
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
