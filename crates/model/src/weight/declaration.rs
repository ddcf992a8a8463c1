//! Declarations of weights, one per weight of a sub-layer: role, shape, split among ranks, names in files,
//! initialization, and whether it is a projection, which may be low-precision, adapted or quantized. Everything that
//! iterates over a model's weights (allocation, files, initialisation, low-precision GEMMs, costs) is a fold over a
//! [`Walk`].

use std::borrow::Cow;
use std::ops::Range;

use super::cut::{Cut, InputSharing};

/// Declaration of one weight by its sub-layer.
#[derive(Clone, Debug)]
pub struct WeightSpec<'a> {
    /// Role in the block, such as `qkv` or `shared.up`; a projection's weight and bias share one.
    pub role: &'static str,
    /// The weight within its role.
    pub term: Term,
    /// Its module.
    pub module: Module,
    /// Its function.
    pub kind: Kind,
    /// Rows x columns of the whole weight; [1, n] for a vector.
    pub shape: [usize; 2],
    /// Split among ranks.
    pub cut: Cut<'a>,
    /// Names in files.
    pub stored: InFiles,
    /// Initial values.
    pub begins: Begins,
    /// Whether decoupled weight decay applies.
    pub decays: bool,
    /// Whether it can receive a gradient.
    pub trainable: bool,
    /// Number of layers that read it, from its own on.
    pub readers: usize,
}

/// Role of the score head.
pub(crate) const SCORE: &str = "score";
/// Roles of an encoder's head of labels: the projection before it, the norm after that, and the head.
pub(crate) const LABELS: [&str; 3] = ["pool", "pool_norm", "labels"];

/// A weight within its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// A projection's or norm's weight.
    Weight,
    /// An added bias.
    Bias,
    /// The role's only weight.
    Whole,
    /// An adapter's first factor.
    LoraA,
    /// An adapter's second factor.
    LoraB,
    /// Bias of an adapter's term.
    LoraBias,
    /// First factor of an embedding's adapter, with a row per token; transposed in files.
    EmbedA,
    /// Its second factor.
    EmbedB,
    /// Embedding rows that replace the base's.
    TokenRows,
    /// DoRA's row magnitudes.
    Lengths,
    /// Column factors.
    Factors,
}

impl Term {
    /// Suffix of the name in files.
    pub(crate) fn end(self) -> &'static str {
        match self {
            Term::Weight => ".weight",
            Term::Bias => ".bias",
            Term::Whole => "",
            Term::LoraA => ".lora_A.weight",
            Term::LoraB => ".lora_B.weight",
            Term::LoraBias => ".lora_B.bias",
            Term::EmbedA => ".lora_embedding_A",
            Term::EmbedB => ".lora_embedding_B",
            Term::TokenRows => ".token_adapter.trainable_tokens_delta",
            Term::Lengths => ".lora_magnitude_vector",
            Term::Factors => ".ia3_l",
        }
    }
}

/// The part of a model that a weight belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// Token embedding, which may also be the head.
    Tokens,
    /// Other weights before the first block.
    Input,
    /// The embedding of a source, and the norm after its last block.
    Source,
    /// A layer's mixer with its norms.
    Attention,
    /// A layer's attention to another stream with its norms.
    Cross,
    /// A layer's feed-forward network with its norms.
    Mlp,
    /// After the last block.
    Last,
    /// The head.
    Head,
}

/// Function of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A projection: may be low-precision, adapted or quantized.
    Linear,
    /// Stacked projections of this many experts.
    Experts(usize),
    /// A projection whose results select (a router, a gate): always in full precision.
    Gate,
    /// A lookup table, or the head.
    Table,
    /// Added by a projection.
    Bias,
    /// Multiplies or shifts normalised values.
    Norm,
    /// A vector that is always f32.
    Wide,
    /// Part of an adapter.
    Adapter,
}

/// Initial values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// Zeros.
    Zeros,
    /// A norm's identity.
    Identity,
    /// Normal.
    Normal,
    /// Normal, for output projections of sub-layers.
    Ending,
    /// Normal with a deviation of one (PyTorch's tables).
    Standard,
    /// Uniform within one over the root of this number (PyTorch's linear layers, by input columns).
    Within(usize),
    /// Ones.
    Ones,
    /// Logarithms of 1, 2, .. (decays of Mamba-2's heads).
    LogCount,
    /// Logarithms of values uniform in 0.01 to 16 (decays of DeltaNet's heads).
    LogUniform,
    /// Inverse of softplus of values from 0.001 to 0.1, uniform in their logarithms (steps of Mamba-2's heads).
    InverseSoftplus,
    /// Uniform within one over the root of its columns (an adapter's A in PEFT, after He et al., 2015).
    Uniform,
}

/// Names of a weight in files, inside the block, without the [`Term`]'s `.weight` or `.bias`.
#[derive(Clone, Debug)]
pub enum InFiles {
    /// Stacked tensors, with the rows (for a vector: elements) of each. In files of families that transpose them,
    /// projections are [in, out].
    Stack(Vec<(Cow<'static, str>, usize)>),
    /// Runs of rows of tensors, each with its row in the weight.
    Rows(Vec<StoredRows>),
    /// Tensors of these shapes, under these full names, one after the other ([`InFiles::whole`]).
    Whole(Vec<(Cow<'static, str>, Vec<usize>)>),
    /// Stacked tensors for each expert: `{at}.{expert}.{name}`.
    Experts(&'static str, Vec<(&'static str, usize)>),
    /// The family has no such weight.
    Unnamed,
}

/// Rows of a tensor in files, in a weight.
#[derive(Clone, Debug)]
pub struct StoredRows {
    /// The tensor's name.
    pub name: &'static str,
    /// Rows of all of it.
    pub all: usize,
    /// Runs of them, each with its row in the weight.
    pub runs: Vec<(Range<usize>, usize)>,
}

impl StoredRows {
    /// The weight's rows from the first of these on, if they are all rows of the tensor and without gaps in the weight.
    pub(crate) fn within(&self) -> Option<Range<usize>> {
        let first = self.runs.iter().map(|(_, row)| *row).min()?;
        let end = self.runs.iter().map(|(rows, row)| row + rows.len()).max()?;
        let held: usize = self.runs.iter().map(|(rows, _)| rows.len()).sum();
        (held == self.all && end - first == held).then_some(first..end)
    }

    /// The same with the weight's row `from` as its row `to`.
    pub(crate) fn moved(&self, from: usize, to: usize) -> StoredRows {
        let runs = self.runs.iter().map(|(rows, row)| (rows.clone(), row - from + to)).collect();
        StoredRows { runs, ..*self }
    }
}

impl InFiles {
    /// Some rows of one tensor with `all` rows.
    pub fn rows(name: &'static str, all: usize, runs: Vec<(Range<usize>, usize)>) -> InFiles {
        InFiles::Rows(vec![StoredRows { name, all, runs }])
    }

    /// One tensor of this shape, under this full name.
    pub fn whole(name: impl Into<Cow<'static, str>>, shape: impl Into<Vec<usize>>) -> InFiles {
        InFiles::Whole(vec![(name.into(), shape.into())])
    }

    /// One tensor.
    pub fn one(name: impl Into<Cow<'static, str>>, rows: usize) -> InFiles {
        InFiles::Stack(vec![(name.into(), rows)])
    }
}

/// Split of a projection among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallel {
    /// Not split.
    Whole(InputSharing),
    /// Each rank computes some output columns.
    Columns,
    /// Each rank computes a term of the whole output, which ends the sub-layer; the bias is added to the sum.
    Rows,
}

/// Declaration of a projection by its sub-layer.
#[derive(Clone, Debug)]
pub struct Projection<'a> {
    /// Role in the block.
    pub role: &'static str,
    /// Its module.
    pub module: Module,
    /// [`Kind::Linear`] or [`Kind::Gate`].
    pub kind: Kind,
    /// Output columns of each fused part.
    pub out: &'a [usize],
    /// Input columns.
    pub inner: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// Split among ranks.
    pub parallel: Parallel,
    /// Names in files.
    pub stored: InFiles,
}

impl<'a> Projection<'a> {
    /// A projection without a bias, split by output columns.
    pub fn new(
        role: &'static str,
        module: Module,
        out: &'a [usize],
        inner: usize,
        stored: InFiles,
    ) -> Projection<'a> {
        let (kind, bias, parallel) = (Kind::Linear, false, Parallel::Columns);
        Projection { role, module, kind, out, inner, bias, parallel, stored }
    }

    pub(super) fn cuts(&self) -> [Cut<'a>; 2] {
        match self.parallel {
            Parallel::Whole(seen) => [Cut::Whole(seen); 2],
            Parallel::Columns => [Cut::Rows(self.out); 2],
            Parallel::Rows => [Cut::Cols, Cut::Whole(InputSharing::Rows)],
        }
    }
}

/// Declaration of a norm, without its width.
#[derive(Clone, Copy, Debug)]
pub struct NormSpec {
    /// Name in files.
    pub name: &'static str,
    /// Whether it has a bias.
    pub bias: bool,
    /// Its input on tensor-parallel ranks.
    pub seen: InputSharing,
}

impl<'a> WeightSpec<'a> {
    /// A weight with the defaults of its kind.
    pub fn new(
        role: &'static str,
        (module, kind): (Module, Kind),
        shape: [usize; 2],
        cut: Cut<'a>,
        stored: InFiles,
    ) -> WeightSpec<'a> {
        let decays = !matches!(kind, Kind::Bias | Kind::Norm | Kind::Wide) && shape[0] > 1;
        let begins = match kind {
            Kind::Norm => Begins::Identity,
            _ if decays => Begins::Normal,
            _ => Begins::Zeros,
        };
        let term = match kind {
            Kind::Bias => Term::Bias,
            Kind::Wide => Term::Whole,
            _ => Term::Weight,
        };
        let (trainable, readers) = (true, 1);
        WeightSpec { role, term, module, kind, shape, cut, stored, begins, decays, trainable, readers }
    }

    /// Its name inside the model, with its layer.
    pub(crate) fn name(&self, layer: Option<usize>) -> String {
        let end = self.term.end();
        match layer {
            Some(layer) => format!("blocks.{layer}.{}{end}", self.role),
            None => format!("{}{end}", self.role),
        }
    }

    /// Returns whether it is an adapter's.
    pub(crate) fn is_added(&self) -> bool {
        self.kind == Kind::Adapter
    }

    /// Returns whether it is part of the score head, or of an encoder's head of labels.
    pub(crate) fn is_scores(&self) -> bool {
        self.kind != Kind::Adapter && (self.role == SCORE || LABELS.contains(&self.role))
    }

    /// Number of products per token, with `chosen` experts.
    pub(crate) fn products(&self, chosen: usize) -> usize {
        let [rows, cols] = self.shape;
        match self.kind {
            // Virtual tokens and their encoder cost nothing per token.
            Kind::Adapter if self.module == Module::Input || self.term == Term::Whole => 0,
            Kind::Adapter if let Cut::Experts(experts, _) = self.cut => rows * cols / experts * chosen,
            Kind::Linear | Kind::Adapter if rows > 1 => rows * cols,
            Kind::Linear => cols,
            Kind::Experts(experts) => rows * cols / experts * chosen,
            Kind::Gate | Kind::Table | Kind::Bias | Kind::Norm | Kind::Wide | Kind::Adapter => 0,
        }
    }
}
