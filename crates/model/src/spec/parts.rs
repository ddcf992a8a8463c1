//! Choices within a specification.

use std::ops::Range;

use fathom_grad::dealable;
use fathom_tensor::{Activation, Buckets, SUM_CHUNK};

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
    pub fn check_deal(
        &self,
        [heads, shared]: [usize; 2],
        what: &str,
    ) -> Result<(), (SplitDimension, String)> {
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
        Err((SplitDimension::Tokens, message))
    }
}

/// Exchange of ranks that share documents in a layer that reads rows in order. Either each gets all tokens of some heads,
/// or states are passed from piece to piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankExchange {
    /// Most rows before a row that it reads with it.
    pub reach: usize,
    /// Columns of these rows.
    pub columns: usize,
    /// Numbers of a state, and of its decays or matrices, in f32.
    pub state: usize,
    /// Columns that go to the ranks with a token's heads, and back.
    pub dealt: usize,
}

impl RankExchange {
    /// Bytes that one of `ranks` ranks sends in a step for a stream of `tokens` tokens of `value_bytes` each: by heads, and by states if
    /// every rank has two pieces that all others need.
    pub fn bytes(&self, ranks: usize, tokens: usize, value_bytes: usize) -> [usize; 2] {
        let [own, others] = [tokens / ranks, ranks - 1];
        let heads = own * others / ranks * self.dealt * value_bytes;
        let states = 2 * (others * self.state * 4 + 2 * self.reach * self.columns * value_bytes);
        [2 * heads, 2 * states]
    }
}

/// Dimension of a model along which ranks share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitDimension {
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

    /// Tokens on each side, if they are bounded.
    pub(crate) fn far(self) -> Option<usize> {
        match self {
            Reach::Around(tokens) => Some(tokens),
            Reach::Causal | Reach::Window(_) | Reach::Full => None,
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

/// Slopes of heads by distance (ALiBi; Press et al., 2022, section 3): powers of two with equal steps of their exponents down
/// to -8; of a number of heads between two powers of two, those of the lower, then every second of the upper.
pub fn slopes(heads: usize) -> Vec<f32> {
    let of = |count: usize| (1..=count).map(move |head| (-8.0 * head as f64 / count as f64).exp2() as f32);
    let lower = 1 << heads.max(1).ilog2();
    of(lower).chain(of(2 * lower).step_by(2)).take(heads).collect()
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

/// Sizes of retrieval: a text is cut into chunks, each of which has neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retrieval {
    /// Tokens of a chunk.
    pub chunk: usize,
    /// Most neighbours of a chunk.
    pub neighbours: usize,
}

impl Retrieval {
    /// Sizes of the paper.
    pub const PAPER: Retrieval = Retrieval { chunk: 64, neighbours: 2 };

    /// Most tokens of a neighbour: a chunk and its continuation.
    pub fn neighbour(self) -> usize {
        2 * self.chunk
    }

    /// Most chunks of a stream of so many tokens.
    pub fn chunks(self, tokens: usize) -> usize {
        tokens / self.chunk
    }

    /// Tokens of the stream of all neighbours of a stream of so many tokens.
    pub fn source(self, tokens: usize) -> usize {
        self.chunks(tokens) * self.neighbours * self.neighbour()
    }

    /// Most documents of that stream: short neighbours leave nearly all of it to those that fill it up, also to whole
    /// chunks of sums.
    pub fn documents(self, tokens: usize) -> usize {
        let filling = 1 + SUM_CHUNK.div_ceil(self.neighbour());
        2 * self.chunks(tokens) * self.neighbours + filling
    }

    /// Rows that read the neighbours of the chunk that begins at row `start` of a document which ends at `end`: from
    /// the chunk's last row, which has seen all of it, to the row before the next chunk's last.
    pub fn readers(self, start: usize, end: usize) -> Range<usize> {
        let last = start + self.chunk - 1;
        last..(last + self.chunk).min(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Transformers' `build_mpt_alibi_tensor` and BLOOM's `_get_alibi_slopes`.
    #[test]
    fn slopes_are_powers_of_two() {
        assert_eq!(slopes(8), [1, 2, 3, 4, 5, 6, 7, 8].map(|power| 0.5f32.powi(power)));
        assert_eq!(slopes(3), [0.0625, 0.00390625, 0.25]);
        assert_eq!(slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
        assert_eq!(slopes(1), [0.00390625]);
        assert_eq!((slopes(112).len(), slopes(112)[111]), (112, 0.5f32.powf(95.0 / 16.0)));
    }

    #[test]
    fn the_neighbours_of_a_chunk_are_read_by_rows_that_have_seen_all_of_it() {
        let sizes = Retrieval { chunk: 4, neighbours: 2 };
        let readers =
            |end: usize| (0..end / 4).map(move |chunk| sizes.readers(4 * chunk, end)).collect::<Vec<_>>();
        assert!(readers(3).is_empty());
        assert_eq!((readers(4).len(), &readers(4)[0]), (1, &(3..4)));
        assert_eq!(readers(14), [3..7, 7..11, 11..14]);
        assert_eq!(
            (sizes.neighbour(), sizes.chunks(14), sizes.source(14), sizes.documents(14)),
            (8, 3, 48, 29)
        );
        assert_eq!(Retrieval::PAPER.documents(640), 42);
    }
}
