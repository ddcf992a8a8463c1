//! Mamba-2's mixer (Dao and Gu, 2024): a causal convolution and a state-space model with one decay per head, between
//! two projections.
//!
//! Legend of shapes: t tokens, d hidden, i inner columns (heads x head size), h heads, c columns of the convolution
//! (inner, and B and C of all groups).

use std::rc::Rc;

use fathom_grad::{ConvUse, Ctx, GatedNormUse, HeadColumns, ParamId, SsdUse, Val};
use fathom_tensor::Activation;

use crate::spec::{
    LayerSpec, Own, RankExchange, Sharers, Spec, SplitDimension, StateSpec, SubLayer, SubLayerParams,
};
use crate::weight::{
    Begins, Cut, InFiles, Kind, LinearParams, Module, Parallel, Projection, Walk, WeightSpec,
};

/// Sizes and switches of the mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// Prefix of its names in files: `mamba`, `mixer`.
    pub at: &'static str,
    /// Heads.
    pub heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Columns of a head's state per column of the head.
    pub state: usize,
    /// Groups of heads that share B and C.
    pub groups: usize,
    /// Tokens that the convolution reads.
    pub width: usize,
    /// Activation after it.
    pub activation: Activation,
    /// Whether the input projection, the convolution and the output projection have biases.
    pub biases: [bool; 3],
    /// Range of the step.
    pub limit: [f32; 2],
    /// Normalisation of the result with its gate.
    pub gate: Gate,
    /// Epsilon of that norm.
    pub eps: f32,
    /// Constants that multiply z, x, B, C and the step (Falcon-H1).
    pub factors: [f32; 5],
}

/// Sizes of the state-space layers of a new model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSizes {
    /// Heads.
    pub heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Columns of a head's state per column of the head.
    pub state: usize,
    /// Groups of heads that share B and C.
    pub groups: usize,
}

/// Order of the gate and the norm after the state-space model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// No norm.
    Alone,
    /// Gate, then norm.
    First,
    /// Norm, then gate.
    Last,
}

/// Its weights.
#[derive(Debug)]
struct Mamba2Params {
    of: Mamba2,
    /// z, x, B, C and the step on top of each other: [i + c + h, d].
    way_in: LinearParams,
    /// f32 [c, width].
    conv: ParamId,
    /// f32 [1, c].
    conv_bias: Option<ParamId>,
    /// f32 [1, h] each: logarithm of the decay, bias of the step, factor of the input in the result.
    of_heads: [ParamId; 3],
    /// [1, i].
    norm: Option<ParamId>,
    /// [d, i].
    way_out: LinearParams,
}

impl Mamba2 {
    /// The mixer of a new model, whose inputs are convolved over four tokens; `at` begins its names in files.
    pub fn new(
        at: &'static str,
        StateSizes { heads, head_dim, state, groups }: StateSizes,
        eps: f32,
    ) -> Mamba2 {
        Mamba2 {
            at,
            heads,
            head_dim,
            state,
            groups,
            width: 4,
            activation: Activation::Silu,
            biases: [false, true, false],
            limit: [0.0, f32::INFINITY],
            gate: Gate::First,
            eps,
            factors: [1.0; 5],
        }
    }

    /// Columns of z, x, B, C and the step.
    fn parts(&self) -> [usize; 5] {
        let (inner, shared) = (self.heads * self.head_dim, self.groups * self.state);
        [inner, inner, shared, shared, self.heads]
    }
}

impl SubLayer for Mamba2 {
    fn module(&self) -> Module {
        Module::Attention
    }

    fn declare(&self, w: &mut Walk<'_>, s: &Spec, _: usize) -> Own {
        let (module, parts, out) = (Module::Attention, self.parts(), [s.hidden]);
        let (inner, heads, [way_in, conv_bias, way_out]) = ([parts[0]], [self.heads], self.biases);
        let named = |name: &str| format!("{}.{name}", self.at);
        let whole = |name: &str, shape: &[usize]| InFiles::whole(named(name), shape.to_vec());
        let columns = &parts[1..4];
        let all: usize = columns.iter().sum();
        let (wide, cut) = ((module, Kind::Wide), Cut::Rows(columns));
        let begins = Begins::Within(self.width);
        let conv = whole("conv1d.weight", &[all, 1, self.width]);
        let conv = WeightSpec::new("mixer.conv", wide, [all, self.width], cut, conv);
        let bias = whole("conv1d.bias", &[all]);
        let bias = WeightSpec::new("mixer.conv_bias", wide, [1, all], cut, bias);
        let norm = InFiles::one(named("norm"), inner[0]);
        let of_norm = (module, Kind::Norm);
        let norm = WeightSpec::new("mixer.norm", of_norm, [1, inner[0]], Cut::Rows(&inner), norm);
        let project = |role, out, inner, name| {
            let stored = InFiles::one(named(name), <[usize]>::iter(out).sum());
            Projection::new(role, module, out, inner, stored)
        };
        let of_head = |w: &mut Walk<'_>, role, name, begins| {
            let stored = whole(name, &heads);
            let spec = WeightSpec::new(role, wide, [1, heads[0]], Cut::Rows(&heads), stored);
            w.weight(WeightSpec { begins, ..spec })
        };
        let projected = project("mixer.in", &parts[..], s.hidden, "in_proj");
        Rc::new(Mamba2Params {
            of: self.clone(),
            way_in: w.linear(Projection { bias: way_in, ..projected }),
            conv: w.weight(WeightSpec { begins, decays: true, ..conv }),
            conv_bias: conv_bias.then(|| w.weight(WeightSpec { begins, ..bias })),
            of_heads: [
                of_head(w, "mixer.a_log", "A_log", Begins::LogCount),
                of_head(w, "mixer.dt_bias", "dt_bias", Begins::InverseSoftplus),
                of_head(w, "mixer.d", "D", Begins::Ones),
            ],
            norm: (self.gate != Gate::Alone).then(|| w.weight(WeightSpec { begins: Begins::Ones, ..norm })),
            way_out: w.linear(Projection {
                bias: way_out,
                parallel: Parallel::Rows,
                ..project("mixer.out", &out[..], inner[0], "out_proj")
            }),
        })
    }

    fn check(&self, ranks: &Sharers) -> Result<(), (SplitDimension, String)> {
        let shared = ranks.columns;
        for (what, number) in [("heads", self.heads), ("groups", self.groups)] {
            if !number.is_multiple_of(shared) {
                let fits =
                    |ranks: &usize| self.heads.is_multiple_of(*ranks) && self.groups.is_multiple_of(*ranks);
                let good: Vec<String> =
                    (1..=self.groups).filter(fits).map(|ranks| ranks.to_string()).collect();
                let what = format!(
                    "{shared} does not divide the {number} {what} of the state-space layers; it may be {}",
                    good.join(", ")
                );
                return Err((SplitDimension::Columns, what));
            }
        }
        ranks.check_deal([self.heads / shared, self.groups / shared], "heads of a state-space layer")
    }

    fn passes(&self, ranks: &Sharers) -> Option<RankExchange> {
        let [_, x, b, c, heads] = self.parts().map(|columns| columns / ranks.columns);
        let (columns, state) = (x + b + c, x * self.state + heads);
        Some(RankExchange { reach: self.width - 1, columns, state, dealt: columns + heads + x })
    }

    fn states(&self, ranks: &Sharers) -> Vec<StateSpec> {
        let (columns, heads) = (self.parts()[1..4].iter().sum::<usize>(), self.heads / ranks.columns);
        vec![
            StateSpec { name: CONV, shape: [self.width - 1, columns / ranks.columns] },
            StateSpec { name: MEMORY, shape: [heads, self.state * self.head_dim] },
        ]
    }
}

/// Names of its states.
const CONV: &str = "conv";
const MEMORY: &str = "memory";

impl SubLayerParams for Mamba2Params {
    fn forward(&self, cx: &mut Ctx<'_>, _: &Spec, _: &LayerSpec, h_td: Val) -> Val {
        let (of, all) = (&self.of, self.of.parts());
        let p_t = self.way_in.columns(cx, "mixer.in", h_td);
        let ranks = all.iter().sum::<usize>() / cx.desc(p_t).cols;
        let [z, x, b, c, heads] = all.map(|columns| columns / ranks);
        let factors: Vec<(usize, f32)> = [z, x, b, c, heads].into_iter().zip(of.factors).collect();
        let p_t = cx.scale_columns("mixer.in.scaled", p_t, &factors);
        let names = ["mixer.gate", "mixer.columns", "mixer.step"];
        let [z_ti, u_tc, dt_th] = cx.split(names, p_t, [z, x + b + c, heads], None);
        let groups = of.groups / ranks;
        let part = |columns, width| HeadColumns { columns, width };
        let parts = [part(x, of.head_dim), part(b, of.state), part(c, of.state)];
        let y_ti = cx.whole(|cx| {
            let names = ["mixer.columns.dealt", "mixer.step.dealt"];
            let [u_tc, dt_th] = cx.to_heads(names, [u_tc, dt_th], [&parts, &[part(heads, 1)]]);
            let silu = of.activation == Activation::Silu;
            let how = ConvUse { silu, state: CONV, parts: &parts };
            let mut u_tc = cx.conv("mixer.out.conv", u_tc, self.conv, self.conv_bias, how);
            if !silu {
                u_tc = cx.activate("mixer.out.act", of.activation, u_tc);
            }
            let groups = groups.max(cx.sharers());
            let how = SsdUse { groups, state: of.state, limit: of.limit, memory: MEMORY };
            let names = ["mixer.out", "mixer.out.states", "mixer.out.began"];
            let y_ti = cx.ssd(names, u_tc, dt_th, self.of_heads, how);
            cx.to_tokens("mixer.out.own", y_ti, of.head_dim)
        });
        let how = GatedNormUse { gate_first: of.gate == Gate::First, width: z / groups, eps: of.eps };
        let y_ti = cx.gated_norm("mixer.norm", y_ti, z_ti, self.norm, how);
        self.way_out.rows(cx, "mixer.proj", y_ti)
    }
}
