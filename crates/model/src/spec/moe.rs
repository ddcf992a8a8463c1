//! Experts in the place of MLPs.

use fathom_grad::{ExpertMlp, ExpertsUse, RouterCosts};
use fathom_tensor::{Activation, Routing, Scores};

/// The experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// How many a layer has.
    pub experts: usize,
    /// How tokens choose.
    pub routing: Routing,
    /// Columns inside one expert.
    pub ffn: usize,
    /// What every token goes through as well.
    pub shared: Option<Shared>,
    /// Layers that have an ordinary MLP instead, ascending.
    pub dense_layers: Vec<usize>,
    /// Routers have biases, which gradients reach.
    pub router_bias: bool,
    /// Routers have biases that join the choice alone, which no gradient reaches.
    pub choice_bias: bool,
    /// Experts have biases.
    pub expert_bias: bool,
    /// Weights of experts are [in, out] (gpt-oss), not [out, in].
    pub transposed: bool,
    /// Losses of routers, for training.
    pub costs: RouterCosts,
    /// For training: most slots of an expert; none are dropped without.
    pub capacity: Option<Capacity>,
    /// For training: how far a step moves each bias of the choice towards even loads (Megatron's
    /// `moe_router_bias_update_rate`).
    pub bias_rate: f32,
}

impl Moe {
    /// So many experts of `ffn` columns, of which a token goes through `top_k`: softmax, weights normalised, in every layer.
    pub fn new(experts: usize, top_k: usize, ffn: usize) -> Moe {
        Moe {
            experts,
            routing: Routing { top_k, scores: Scores::Softmax, groups: None, normalise: true, scale: 1.0 },
            ffn,
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

    /// Without what training adds, which no configuration of a family says.
    pub(crate) fn untrained(self) -> Moe {
        Moe { costs: RouterCosts::default(), capacity: None, bias_rate: 0.0, ..self }
    }

    /// What its experts are.
    pub(crate) fn mlp(&self, activation: Activation) -> ExpertMlp {
        ExpertMlp { layout: ExpertsUse { experts: self.experts, trans: !self.transposed }, activation }
    }
}

/// Most slots of an expert, of those of one rank's tokens of a micro batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// In even shares (Megatron's `moe_expert_capacity_factor`).
    pub factor: f32,
    /// Which slots are dropped (Megatron's `moe_token_drop_policy`).
    pub drops: Drops,
}

/// Which slots an expert does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    /// Those with the smallest weights.
    Lightest,
    /// Those that come last.
    Last,
}

/// Experts that every token goes through, as one MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Columns inside.
    pub ffn: usize,
    /// A sigmoid of its own weighs the result (Qwen 2).
    pub gated: bool,
}
