//! Ids of weights that belong together.

use fathom_grad::{ExpertTerm, HeadTerm, LoraUse, ParamId, Runs};

/// Weight and bias of a norm.
#[derive(Clone, Copy, Debug)]
pub struct NormParams {
    /// [1, width].
    pub weight: ParamId,
    /// [1, width].
    pub bias: Option<ParamId>,
}

/// Weight and bias of a projection.
#[derive(Clone, Copy, Debug)]
pub struct LinearParams {
    /// [out, in].
    pub weight: ParamId,
    /// [1, out].
    pub bias: Option<ParamId>,
    /// What an adapter adds.
    pub adapter: Option<AdapterParams>,
}

/// The weights of a projection's adapter.
#[derive(Clone, Copy, Debug)]
pub enum AdapterParams {
    /// Low-rank terms, and the lengths [1, columns] of DoRA.
    Lora(LoraUse, Option<ParamId>),
    /// Low-rank terms of experts.
    Experts([Option<ExpertTerm>; 2]),
    /// Factors [1, columns] of these columns of the output, or of all of the input.
    Factors {
        /// The factors.
        factors: ParamId,
        /// Of which columns.
        runs: Runs,
        /// Of the input.
        input: bool,
    },
}

/// The table of distances, which all layers share.
#[derive(Clone, Copy, Debug)]
pub struct DistanceParams {
    /// [2 span, d].
    pub table: ParamId,
    /// Of its rows.
    pub norm: Option<NormParams>,
}

/// What the keys and values of a prefix are computed from in all layers (PEFT's `prefix_projection`): each virtual token's row goes
/// through a linear layer and a hyperbolic tangent.
#[derive(Clone, Copy, Debug)]
pub struct PrefixEncoder {
    /// [n, k].
    pub(crate) rows: ParamId,
    /// [h, k].
    pub(crate) hidden: LinearParams,
}

/// Weights after the last block.
#[derive(Clone, Copy, Debug)]
pub struct LastParams {
    /// After the last block, unless every sub-layer ends with one.
    pub norm: Option<NormParams>,
    /// [d, d]: before the head of an encoder.
    pub pool: Option<LinearParams>,
    /// [vocab, d], or [labels, d]; the embedding if tied.
    pub head: ParamId,
    /// [1, vocab].
    pub head_bias: Option<ParamId>,
    /// What an adapter adds to the head.
    pub term: Option<HeadTerm>,
    /// The second head's [k, d], called `score` as in Transformers' sequence classifiers.
    pub score: Option<ParamId>,
    /// Projections of hidden states, [count x columns, d].
    pub projections: Option<ParamId>,
}

/// A weight that the rank does not have.
pub(crate) const NOWHERE: ParamId = ParamId(u32::MAX);
