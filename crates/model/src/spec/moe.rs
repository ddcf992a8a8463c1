//! Mixtures of experts in place of MLPs.

use fathom_grad::{ExpertMlp, ExpertsUse, RouterCosts};
use fathom_tensor::{RouterScores, Routing};

use super::parts::Mlp;

/// The experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Experts per layer.
    pub experts: usize,
    /// Choice of a token's experts.
    pub routing: Routing,
    /// Columns inside one expert.
    pub ffn: usize,
    /// Columns that experts read and write, if not those of the residual stream: projections lead to them and back
    /// (Nemotron 3).
    pub latent: Option<usize>,
    /// Experts that every token goes through.
    pub shared: Option<SharedExperts>,
    /// Layers with an ordinary MLP instead, ascending.
    pub dense_layers: Vec<usize>,
    /// Whether routers have biases, trained by gradients.
    pub router_bias: bool,
    /// Whether routers have biases that affect only the choice and get no gradients.
    pub choice_bias: bool,
    /// Whether experts have biases.
    pub expert_bias: bool,
    /// Whether experts' weights are [in, out] (gpt-oss) rather than [out, in].
    pub transposed: bool,
    /// Losses of routers, in training.
    pub costs: RouterCosts,
    /// Most slots per expert, in training; without it, none are dropped.
    pub capacity: Option<ExpertCapacity>,
    /// Step size of the choice biases towards even loads, in training (Megatron's `moe_router_bias_update_rate`).
    pub bias_rate: f32,
}

impl Moe {
    /// `experts` experts of `ffn` columns in every layer, `top_k` per token: softmax, normalised weights.
    pub fn new(experts: usize, top_k: usize, ffn: usize) -> Moe {
        Moe {
            experts,
            routing: Routing {
                top_k,
                scores: RouterScores::Softmax,
                groups: None,
                normalise: true,
                scale: 1.0,
            },
            ffn,
            latent: None,
            shared: None,
            dense_layers: Vec::new(),
            router_bias: false,
            choice_bias: false,
            expert_bias: false,
            transposed: false,
            costs: RouterCosts::default(),
            capacity: None,
            bias_rate: 0.0,
        }
    }

    /// Without training settings, which families' configurations do not have.
    pub(crate) fn untrained(self) -> Moe {
        Moe { costs: RouterCosts::default(), capacity: None, bias_rate: 0.0, ..self }
    }

    /// Layout and function of its experts.
    pub(crate) fn mlp(&self, Mlp { activation, gated }: Mlp) -> ExpertMlp {
        ExpertMlp { layout: ExpertsUse { experts: self.experts, trans: !self.transposed }, activation, gated }
    }

    /// Columns that its experts read and write, of a residual stream of `hidden`.
    pub(crate) fn width(&self, hidden: usize) -> usize {
        self.latent.unwrap_or(hidden)
    }

    /// Columns of an expert's input projection.
    pub(crate) fn wide(&self, gated: bool) -> usize {
        if gated { 2 * self.ffn } else { self.ffn }
    }
}

/// Most slots per expert, among those of one rank's tokens in a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertCapacity {
    /// Multiple of an even share (Megatron's `moe_expert_capacity_factor`).
    pub factor: f32,
    /// Choice of dropped slots (Megatron's `moe_token_drop_policy`).
    pub drops: Drops,
}

/// Choice of the slots that an expert drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    /// Those with the smallest weights.
    Lightest,
    /// The last ones.
    Last,
}

/// Experts that every token goes through, as one MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExperts {
    /// Columns inside.
    pub ffn: usize,
    /// Whether the result is scaled by a sigmoid gate (Qwen 2).
    pub gated: bool,
}
