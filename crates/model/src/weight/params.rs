//! Ids of related weights.

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
    /// An adapter's weights.
    pub adapter: Option<AdapterParams>,
}

/// The weights of a projection's adapter.
#[derive(Clone, Copy, Debug)]
pub enum AdapterParams {
    /// Low-rank terms, and DoRA's magnitudes [1, columns].
    Lora(LoraUse, Option<ParamId>),
    /// Low-rank terms of experts.
    Experts([Option<ExpertTerm>; 2]),
    /// Factors [1, columns] of these output columns, or of the whole input.
    Factors {
        /// The factors.
        factors: ParamId,
        /// Scaled output columns.
        runs: Runs,
        /// Whether they scale the input.
        input: bool,
    },
}

impl AdapterParams {
    /// The first of a projection's weights; `None` for those of experts.
    pub(super) fn first(&self) -> Option<ParamId> {
        match self {
            AdapterParams::Lora(lora, _) => Some(lora.a),
            AdapterParams::Factors { factors, .. } => Some(*factors),
            AdapterParams::Experts(_) => None,
        }
    }
}

/// Table of distances, shared by all layers.
#[derive(Clone, Copy, Debug)]
pub struct DistanceParams {
    /// [2 span, d].
    pub table: ParamId,
    /// Norm of its rows.
    pub norm: Option<NormParams>,
}

/// Encoder shared by all layers' prefixes (PEFT's `prefix_projection`): each virtual token's row goes through a
/// linear layer and a hyperbolic tangent.
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
    /// Norm after the last block, unless every sub-layer ends with one.
    pub norm: Option<NormParams>,
    /// [d, d]: projection before an encoder's head.
    pub pool: Option<LinearParams>,
    /// Norm after it.
    pub pool_norm: Option<NormParams>,
    /// [vocab, d], or [labels, d]; the embedding if tied.
    pub head: ParamId,
    /// [1, vocab].
    pub head_bias: Option<ParamId>,
    /// An adapter's term for the head.
    pub term: Option<HeadTerm>,
    /// Score head [k, d], named `score` as in Transformers' sequence classifiers.
    pub score: Option<ParamId>,
    /// Projections of hidden states, [count x columns, d].
    pub projections: Option<ParamId>,
}

/// Id of a weight that the rank does not have.
pub(crate) const NOWHERE: ParamId = ParamId(u32::MAX);
