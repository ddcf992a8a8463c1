//! Mixtures of experts: weights and forward pass.
//!
//! Legend of shapes: t tokens, d hidden, n experts, k experts per token, f ffn of one expert.

use fathom_grad::{Ctx, ParamId, RouterCosts, Val};
use fathom_tensor::{RouterScores, Routing};

use crate::adapter::declare_experts;
use crate::mlp::{DenseParams, mlp};
use crate::spec::{Drops, ExpertCapacity, Moe, SharedExperts, Spec};
use crate::weight::{
    Begins, Cut, InFiles, InputSharing, Inside, Kind, LinearParams, Module, MoeNames, Parallel, Projection,
    Walk, WeightSpec,
};

/// Weights of the experts of one layer.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsParams {
    /// The layer's index in the model.
    pub layer: usize,
    /// [n, d].
    pub router: LinearParams,
    /// f32 [1, n]: added for the choice only.
    pub choice_bias: Option<ParamId>,
    /// Projections to the width of the experts and back, if they have one of their own.
    pub latent: Option<[LinearParams; 2]>,
    /// Gate and up of each expert on top of each other: [n x 2f, d]; its bias [n, 2f].
    pub up: LinearParams,
    /// [n x d, f]; its bias [n, d].
    pub down: LinearParams,
    /// Experts that every token goes through.
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

/// The experts of one layer: residual contribution of `h_td`.
pub(crate) fn experts(cx: &mut Ctx<'_>, s: &Spec, p: &ExpertsParams, h_td: Val) -> Val {
    let Some(m) = &s.moe else { panic!("weights of experts, and a specification without") };
    let y_td = routed(cx, s, m, p, h_td);
    match &p.shared {
        Some(p) => {
            let s_td = shared(cx, s, p, h_td);
            cx.add("moe.sum", y_td, s_td)
        }
        None => y_td,
    }
}

/// Contribution of each token's own experts. Tensor-parallel ranks each do this for some tokens.
fn routed(cx: &mut Ctx<'_>, s: &Spec, m: &Moe, p: &ExpertsParams, h_td: Val) -> Val {
    let h_td = cx.own_rows("moe.in", h_td);
    let l_tn = cx.linear_wide("moe.logits", h_td, p.router.weight, p.router.bias);
    let how = (m.routing, p.layer);
    let [w_tk, i_tk] = cx.route_counted(["moe.weights", "moe.index"], l_tn, how, p.choice_bias);
    let w_tk = balance(cx, m, [w_tk, i_tk, l_tn]);
    let i_tk = limit(cx, m, [i_tk, w_tk]);
    let (up, down) = (p.up.of_experts(), p.down.of_experts());
    let names = ["moe.up", "moe.act", "moe.down"];
    let x_td = p.latent.map_or(h_td, |[way_in, _]| way_in.whole(cx, "moe.latent", h_td));
    let y_tkd = cx.expert_mlp(names, [x_td, i_tk], m.mlp(s.mlp), up, down);
    let y_td = cx.combine("moe.out", y_tkd, w_tk);
    let y_td = p.latent.map_or(y_td, |[_, way_out]| way_out.whole(cx, "moe.latent.out", y_td));
    cx.all_rows("moe.rows", y_td)
}

/// Contribution of the shared experts, scaled by the sigmoid of their gate if there is one.
fn shared(cx: &mut Ctx<'_>, s: &Spec, p: &SharedParams, h_td: Val) -> Val {
    const GATE: Routing =
        Routing { top_k: 1, scores: RouterScores::Sigmoid, groups: None, normalise: false, scale: 1.0 };
    let s_td = mlp(cx, s, ["moe.shared.up", "moe.shared.act", "moe.shared.down"], (&p.mlp, 1.0), h_td);
    let Some(gate) = p.gate else { return s_td };
    let l_t1 = cx.linear_wide("moe.shared.logit", h_td, gate, None);
    let [w_t1, _] = cx.route(["moe.shared.weight", "moe.shared.index"], l_t1, GATE, None);
    cx.combine("moe.shared.out", s_td, w_t1)
}

/// Adds the router's losses, if any.
fn balance(cx: &mut Ctx<'_>, m: &Moe, [w_tk, i_tk, l_tn]: [Val; 3]) -> Val {
    if m.costs == RouterCosts::default() {
        return w_tk;
    }
    cx.balance(["moe.weights.balanced", "moe.load"], [w_tk, i_tk, l_tn], m.routing.scores, m.costs)
}

/// Drops slots beyond the experts' capacity.
fn limit(cx: &mut Ctx<'_>, m: &Moe, [i_tk, w_tk]: [Val; 2]) -> Val {
    let Some(ExpertCapacity { factor, drops }) = m.capacity else { return i_tk };
    let weights = (drops == Drops::Lightest).then_some(w_tk);
    cx.whole(|cx| cx.limit("moe.index.limited", i_tk, weights, m.experts, factor))
}

impl ExpertsParams {
    /// Declares the weights of a layer's experts, in their order.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, m: &Moe, index: usize) -> ExpertsParams {
        let (names, module) = (w.names.moe, Module::Mlp);
        let of = |stored: &dyn Fn(MoeNames) -> InFiles| names.map_or(InFiles::Unnamed, stored);
        let (all, router) = ([m.experts], of(&|names| InFiles::one(names.router, m.experts)));
        // Tensor-parallel ranks each route some of the tokens, with or without sequence parallelism.
        let (kind, parallel, bias) = (Kind::Gate, Parallel::Whole(InputSharing::Own), m.router_bias);
        let router = Projection::new("router", module, &all, s.hidden, router);
        let latent = |w: &mut Walk<'_>, at: usize| {
            let sizes = m.latent.map_or([s.hidden; 2], |latent| [latent, s.hidden]);
            let (out, inner) = ([sizes[at]], sizes[1 - at]);
            let stored = of(&|names| InFiles::one(names.latent[at], out[0]));
            let p =
                Projection::new(["experts.latent", "experts.latent_out"][at], module, &out, inner, stored);
            w.linear(Projection { bias: s.bias.mlp, parallel: Parallel::Whole(InputSharing::Own), ..p })
        };
        let choice = of(&|names| InFiles::whole(names.choice_bias, vec![m.experts]));
        let (at, cut) = ((module, Kind::Wide), Cut::Whole(InputSharing::Same));
        let choice = WeightSpec::new("router.choice_bias", at, [1, m.experts], cut, choice);
        let [way_in, way_out] = [of(&|names| names.up(s, m)), of(&|names| names.down(s, m))];
        ExpertsParams {
            layer: index,
            router: w.linear(Projection { kind, parallel, bias, ..router }),
            choice_bias: m.choice_bias.then(|| w.weight(WeightSpec { trainable: false, ..choice })),
            latent: m.latent.map(|_| [0, 1].map(|at| latent(w, at))),
            up: LinearParams {
                weight: expert_up(w, s, m, way_in),
                bias: expert_bias(w, s, m, 0),
                adapter: declare_experts(w, s, m, true),
            },
            down: LinearParams {
                weight: expert_down(w, s, m, way_out),
                bias: expert_bias(w, s, m, 1),
                adapter: declare_experts(w, s, m, false),
            },
            shared: m.shared.map(|shared| SharedParams::declare(w, s, shared)),
        }
    }
}

impl SharedParams {
    fn declare(w: &mut Walk<'_>, s: &Spec, shared: SharedExperts) -> SharedParams {
        let names = w.names.moe;
        let inside = Some(names.map_or("", |names| names.shared));
        let mlp = DenseParams::declare(w, s, ["shared.up", "shared.down"], shared.ffn, inside);
        // A matrix of one row.
        let gate = names.map_or(InFiles::Unnamed, |names| {
            InFiles::whole(format!("{}.weight", names.shared_gate), vec![1, s.hidden])
        });
        let (at, cut) = ((Module::Mlp, Kind::Gate), Cut::Whole(InputSharing::Rows));
        let gate = WeightSpec::new("shared.gate", at, [1, s.hidden], cut, gate);
        let gate = WeightSpec { decays: true, begins: Begins::Normal, ..gate };
        SharedParams { mlp, gate: shared.gated.then(|| w.weight(gate)) }
    }
}

/// Input projection of all experts, stacked; a transposed one interleaves gate and up.
fn expert_up(w: &mut Walk<'_>, s: &Spec, m: &Moe, stored: InFiles) -> ParamId {
    let (halves, width) = ([m.ffn; 2], m.width(s.hidden));
    let groups = if s.mlp.gated { &halves[..] } else { &halves[..1] };
    let wide = m.ffn * groups.len();
    let (rows, cols, inside) =
        if m.transposed { (width, wide, Inside::Cols) } else { (wide, width, Inside::Rows(groups)) };
    let (at, cut) = ((Module::Mlp, Kind::Experts(m.experts)), Cut::Experts(m.experts, inside));
    w.weight(WeightSpec::new("experts.up", at, [m.experts * rows, cols], cut, stored))
}

/// Output projection of all experts: ranks that share an expert compute terms of a sum.
fn expert_down(w: &mut Walk<'_>, s: &Spec, m: &Moe, stored: InFiles) -> ParamId {
    let (all, width) = ([m.ffn], m.width(s.hidden));
    let (rows, cols, inside) =
        if m.transposed { (m.ffn, width, Inside::Rows(&all)) } else { (width, m.ffn, Inside::Cols) };
    let (at, cut) = ((Module::Mlp, Kind::Experts(m.experts)), Cut::Experts(m.experts, inside));
    let down = WeightSpec::new("experts.down", at, [m.experts * rows, cols], cut, stored);
    w.weight(WeightSpec { begins: Begins::Ending, ..down })
}

/// Biases of the input (0) or output (1) projections, one row per expert; of the ranks that form a sum, one adds its
/// bias.
fn expert_bias(w: &mut Walk<'_>, s: &Spec, m: &Moe, part: usize) -> Option<ParamId> {
    let (cols, inside) = [(2 * m.ffn, Inside::Cols), (s.hidden, Inside::Whole)][part];
    let (shape, cut) = ([m.experts, cols], Cut::Experts(m.experts, inside));
    let stored = w.names.moe.map_or(InFiles::Unnamed, |names| names.bias(part, shape));
    let bias =
        WeightSpec::new(["experts.up", "experts.down"][part], (Module::Mlp, Kind::Bias), shape, cut, stored);
    m.expert_bias.then(|| w.weight(bias))
}
