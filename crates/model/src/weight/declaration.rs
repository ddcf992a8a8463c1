//! What a sub-layer says of each of its weights, once: its role, its shape, how ranks cut it, what files call it, how it begins,
//! and whether it is a projection, which may be low-precision, adapted or quantised. Whatever looks at a model's weights
//! (declaring, files, initialisation, low-precision GEMMs, costs) is a fold over a [`Walk`].

use std::borrow::Cow;
use std::ops::Range;

use super::cut::{Cut, Seen};

/// One weight, as its sub-layer declares it.
#[derive(Clone, Debug)]
pub struct WeightSpec<'a> {
    /// Its part in the block, as `qkv` or `shared.up`; a projection's weight and bias have the same.
    pub role: &'static str,
    /// Which of those it is.
    pub term: Term,
    /// What it belongs to.
    pub module: Module,
    /// What it does.
    pub kind: Kind,
    /// Rows x columns of all of it; [1, n] for a vector.
    pub shape: [usize; 2],
    /// How ranks cut it.
    pub cut: Cut<'a>,
    /// What files call it.
    pub stored: InFiles,
    /// Its first values.
    pub begins: Begins,
    /// Decoupled weight decay applies.
    pub decays: bool,
    /// Receives a gradient.
    pub trainable: bool,
}

/// The role of the head of scores.
pub(crate) const SCORE: &str = "score";

/// Which weight of its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// What is multiplied with.
    Weight,
    /// What is added.
    Bias,
    /// The only one.
    Whole,
    /// An adapter's first factor.
    LoraA,
    /// Its second.
    LoraB,
    /// What is added to it.
    LoraBias,
    /// The first factor of an embedding's adapter, whose rows are of tokens; in files it lies the other way round.
    EmbedA,
    /// Its second.
    EmbedB,
    /// Rows of an embedding in place of the base's.
    TokenRows,
    /// Lengths of rows.
    Lengths,
    /// Factors of columns.
    Factors,
}

impl Term {
    /// What follows the name of what it belongs to.
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
    /// The embedding of tokens, which may be the head too.
    Tokens,
    /// Whatever else comes before the first block.
    Input,
    /// A layer's mixer with its norms.
    Attention,
    /// A layer's feed-forward network with its norms.
    Mlp,
    /// After the last block.
    Last,
    /// The head.
    Head,
}

/// What a weight does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A projection: may be low-precision, adapted or quantised.
    Linear,
    /// The projections of this many experts, on top of each other.
    Experts(usize),
    /// A projection whose results decide (a router, a gate): stays as it is.
    Gate,
    /// A table of rows that are looked up, or the head's of what they are compared with.
    Table,
    /// Added by a projection.
    Bias,
    /// Multiplies or shifts what is normalised.
    Norm,
    /// A vector of f32, whatever the others are.
    Wide,
    /// Of a projection's adapter.
    Adapter,
}

/// First values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// Zeros.
    Zeros,
    /// A norm's identity.
    Identity,
    /// Normal.
    Normal,
    /// Normal, at the end of a sub-layer.
    Ending,
    /// Normal with a deviation of one (PyTorch's tables).
    Standard,
    /// Uniform within one over the root of this number (PyTorch's linear layers, by the columns that they read).
    Within(usize),
    /// Uniform within one over the root of its columns (an adapter's A in PEFT, after He et al., 2015).
    Uniform,
}

/// What files call a weight: names inside the block, without the `.weight` and `.bias` that follow the [`Term`].
#[derive(Clone, Debug)]
pub enum InFiles {
    /// Tensors on top of each other, with the rows of each (of a vector: elements). Projections are [in, out] in the files of
    /// families that transpose them.
    Stack(Vec<(Cow<'static, str>, usize)>),
    /// Runs of the rows of one tensor of this many rows, with the row of the weight where each lies.
    Rows(&'static str, usize, Vec<(Range<usize>, usize)>),
    /// One tensor of this shape; the name is all of it.
    Whole(Cow<'static, str>, Vec<usize>),
    /// Tensors on top of each other for each expert: `{at}.{expert}.{name}`.
    Experts(&'static str, Vec<(&'static str, usize)>),
    /// The family has no name for it.
    Unnamed,
}

impl InFiles {
    /// One tensor.
    pub fn one(name: impl Into<Cow<'static, str>>, rows: usize) -> InFiles {
        InFiles::Stack(vec![(name.into(), rows)])
    }
}

/// How ranks cut a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallel {
    /// Not at all.
    Whole(Seen),
    /// Each computes some columns of its output.
    Columns,
    /// Each computes a term of the whole output, which ends the sub-layer; the bias is added to the sum.
    Rows,
}

/// A projection, as its sub-layer declares it.
#[derive(Clone, Debug)]
pub struct Projection<'a> {
    /// Its part in the block.
    pub role: &'static str,
    /// What it belongs to.
    pub module: Module,
    /// [`Kind::Linear`] or [`Kind::Gate`].
    pub kind: Kind,
    /// Columns of its output, by what is fused in it.
    pub out: &'a [usize],
    /// Columns of its input.
    pub inner: usize,
    /// It has a bias.
    pub bias: bool,
    /// How ranks cut it.
    pub parallel: Parallel,
    /// What files call it.
    pub stored: InFiles,
}

impl<'a> Projection<'a> {
    /// A projection without a bias whose output ranks compute some columns of.
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
            Parallel::Rows => [Cut::Cols, Cut::Whole(Seen::Rows)],
        }
    }
}

/// What a norm has besides its width.
#[derive(Clone, Copy, Debug)]
pub struct Normed {
    /// What files call it.
    pub name: &'static str,
    /// It has a bias.
    pub bias: bool,
    /// What tensor parallel ranks normalise with it.
    pub seen: Seen,
}

impl<'a> WeightSpec<'a> {
    /// A weight that is and begins as most of its kind.
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
        let trainable = true;
        WeightSpec { role, term, module, kind, shape, cut, stored, begins, decays, trainable }
    }

    /// Its name inside the model, with its layer.
    pub(crate) fn name(&self, layer: Option<usize>) -> String {
        let end = self.term.end();
        match layer {
            Some(layer) => format!("blocks.{layer}.{}{end}", self.role),
            None => format!("{}{end}", self.role),
        }
    }

    /// It is an adapter's.
    pub(crate) fn is_added(&self) -> bool {
        self.kind == Kind::Adapter
    }

    /// It is the head of scores.
    pub(crate) fn is_scores(&self) -> bool {
        self.role == SCORE
    }

    /// Products that a token takes part in, of `chosen` experts.
    pub(crate) fn products(&self, chosen: usize) -> usize {
        let [rows, cols] = self.shape;
        match self.kind {
            // Virtual tokens and their encoder are no work of a token's.
            Kind::Adapter if self.module == Module::Input || self.term == Term::Whole => 0,
            Kind::Adapter if let Cut::Experts(experts, _) = self.cut => rows * cols / experts * chosen,
            Kind::Linear | Kind::Adapter if rows > 1 => rows * cols,
            Kind::Linear => cols,
            Kind::Experts(experts) => rows * cols / experts * chosen,
            Kind::Gate | Kind::Table | Kind::Bias | Kind::Norm | Kind::Wide | Kind::Adapter => 0,
        }
    }
}
