//! Mixtures of experts: what a family says about them, their weights, and their mathematics.
//!
//! Legend of shapes: t tokens, d hidden, n experts, k experts of a token, f ffn of one expert.

use fathom_grad::{Ctx, ExpertsUse, ParamId, RouterCosts, Val};
use fathom_tensor::{Routing, Scores};

use crate::block::{DenseParams, LinearParams, mlp};
use crate::spec::Spec;

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
    /// For training: an expert takes at most this many times its even share of a micro batch's slots, the others are
    /// dropped by position; none are dropped without.
    pub capacity: Option<f32>,
}

/// Experts that every token goes through, as one MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Columns inside.
    pub ffn: usize,
    /// A sigmoid of its own weighs the result (Qwen 2).
    pub gated: bool,
}

/// Weights of the experts of one layer.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsParams {
    /// [n, d].
    pub router: LinearParams,
    /// f32 [1, n]: joins the choice.
    pub choice_bias: Option<ParamId>,
    /// Gate and up of each expert on top of each other: [n x 2f, d]; its bias [n, 2f].
    pub up: LinearParams,
    /// [n x d, f]; its bias [n, d].
    pub down: LinearParams,
    /// What every token goes through.
    pub shared: Option<SharedParams>,
}

/// Weights of shared experts.
#[derive(Clone, Copy, Debug)]
pub struct SharedParams {
    /// The MLP.
    pub mlp: DenseParams,
    /// [1, d].
    pub gate: Option<ParamId>,
}

impl Moe {
    /// How weights of experts lie.
    fn layout(&self) -> ExpertsUse {
        ExpertsUse { experts: self.experts, trans: !self.transposed }
    }
}

/// The experts of one layer: `h_td` to what they add.
pub(crate) fn experts(cx: &mut Ctx<'_>, s: &Spec, m: &Moe, p: &ExpertsParams, h_td: Val) -> Val {
    let l_tn = cx.linear_wide("moe.logits", h_td, p.router.weight, p.router.bias);
    let [w_tk, i_tk] = cx.route(["moe.weights", "moe.index"], l_tn, m.routing, p.choice_bias);
    let w_tk = balance(cx, m, [w_tk, i_tk, l_tn]);
    let i_tk = limit(cx, m, i_tk);
    let u_tkf = cx.experts("moe.up", [h_td, i_tk], m.layout(), p.up.weight, p.up.bias);
    let a_tkf = cx.gate_each("moe.act", s.mlp.activation, u_tkf, m.routing.top_k);
    let y_tkd = cx.experts("moe.down", [a_tkf, i_tk], m.layout(), p.down.weight, p.down.bias);
    let y_td = cx.combine("moe.out", y_tkd, w_tk);
    match &p.shared {
        Some(p) => {
            let s_td = shared(cx, s, p, h_td);
            cx.add("moe.sum", y_td, s_td)
        }
        None => y_td,
    }
}

/// What every token goes through, weighed by the sigmoid of its gate if it has one.
fn shared(cx: &mut Ctx<'_>, s: &Spec, p: &SharedParams, h_td: Val) -> Val {
    const GATE: Routing =
        Routing { top_k: 1, scores: Scores::Sigmoid, groups: None, normalise: false, scale: 1.0 };
    let s_td = mlp(cx, s, ["moe.shared.up", "moe.shared.act", "moe.shared.down"], &p.mlp, h_td);
    let Some(gate) = p.gate else { return s_td };
    let l_t1 = cx.linear_wide("moe.shared.logit", h_td, gate, None);
    let [w_t1, _] = cx.route(["moe.shared.weight", "moe.shared.index"], l_t1, GATE, None);
    cx.combine("moe.shared.out", s_td, w_t1)
}

/// The router's losses, if it has any.
fn balance(cx: &mut Ctx<'_>, m: &Moe, [w_tk, i_tk, l_tn]: [Val; 3]) -> Val {
    if m.costs == RouterCosts::default() {
        return w_tk;
    }
    cx.balance(["moe.weights.balanced", "moe.load"], [w_tk, i_tk, l_tn], m.routing.scores, m.costs)
}

/// Slots within the capacity of experts.
fn limit(cx: &mut Ctx<'_>, m: &Moe, i_tk: Val) -> Val {
    match m.capacity {
        Some(factor) => cx.whole(|cx| cx.limit("moe.index.limited", i_tk, m.experts, factor)),
        None => i_tk,
    }
}
