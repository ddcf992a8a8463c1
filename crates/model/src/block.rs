//! The block of every family: sub-layers, each adding to the residual stream.
//!
//! Legend of shapes: t tokens, d hidden.

use std::ops::Range;

use fathom_grad::{Ctx, ParamId, Val};

use crate::adapter::{HoulsbyParams, PrefixParams};
use crate::attention::{AttentionParams, attention};
use crate::cross::{CrossParams, cross};
use crate::mlp::{DenseParams, mlp};
use crate::moe::{ExpertsParams, experts};
use crate::norm::norm;
use crate::spec::{LayerSpec, Own, Part, PartKind, Residual, Spec};
use crate::weight::{CrossNames, Module, NormParams, Walk};

/// Weights of one block.
#[derive(Clone, Debug)]
pub struct BlockParams {
    /// Those of its parts, in order.
    pub parts: Vec<PartParams>,
    /// Norm after the source's last block.
    pub source_norm: Option<NormParams>,
}

/// Weights of a block's part.
#[derive(Clone, Debug)]
pub struct PartParams {
    /// Norm before the sub-layer.
    pub norm: Option<NormParams>,
    /// The sub-layer.
    pub sublayer: SubParams,
    /// Norm after it.
    pub post_norm: Option<NormParams>,
    /// An adapter's network after it.
    pub network: Option<HoulsbyParams>,
}

/// Weights of a sub-layer.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // One per layer, and the large variant is the usual one.
pub enum SubParams {
    /// Attention.
    Attention(AttentionParams),
    /// Attention to another stream.
    Cross(CrossParams),
    /// One network for all tokens.
    Dense(DenseParams),
    /// A mixture of experts.
    Experts(ExpertsParams),
    /// A family's own, and the first weight that the model's adapter adds to each of its projections.
    Own(Own, Vec<ParamId>),
}

/// One block: `x_td` to the next block's `x_td`, with the result of another stream if there is one.
pub fn block(cx: &mut Ctx<'_>, s: &Spec, layer: &LayerSpec, p: &BlockParams, streams: [Val; 2]) -> Val {
    parts(cx, s, layer, (p, 0..layer.parts.len()), streams)
}

/// Some of a block's parts.
pub(crate) fn parts(
    cx: &mut Ctx<'_>,
    s: &Spec,
    layer: &LayerSpec,
    (p, range): (&BlockParams, Range<usize>),
    [x_td, m_sd]: [Val; 2],
) -> Val {
    cx.rows(|cx| {
        let (mut y_td, mut h_td) = (x_td, x_td);
        for (part, p) in layer.parts[range.clone()].iter().zip(&p.parts[range]) {
            let names = Activations::of(part.kind.module());
            h_td = match part.residual {
                Residual::SharedNorm => h_td,
                Residual::Parallel => x_td,
                Residual::Pre | Residual::Post | Residual::Sandwich | Residual::Sum | Residual::None => y_td,
            };
            h_td = norm(cx, s, names.norm, h_td, p.norm);
            let r_td = cx.scale(names.input, h_td, part.factors.input);
            let a_td = p.sublayer.forward(cx, s, (layer, part), [r_td, m_sd]);
            let a_td = p.network.map_or(a_td, |network| network.forward(cx, s, a_td));
            y_td = join(cx, s, part, names, [y_td, a_td], p.post_norm);
        }
        y_td
    })
}

impl SubParams {
    /// The sub-layer's residual contribution.
    fn forward(
        &self,
        cx: &mut Ctx<'_>,
        s: &Spec,
        (layer, part): (&LayerSpec, &Part),
        [h_td, m_sd]: [Val; 2],
    ) -> Val {
        match self {
            SubParams::Attention(p) => attention(cx, s, layer, p, h_td),
            SubParams::Cross(p) => cross(cx, s, p, h_td, m_sd),
            SubParams::Dense(p) => {
                mlp(cx, s, ["mlp.up", "mlp.act", "mlp.down"], (p, part.factors.gate), h_td)
            }
            SubParams::Experts(p) => experts(cx, s, p, h_td),
            SubParams::Own(p, adapted) => {
                let a_td = p.forward(cx, s, layer, h_td);
                let unread = adapted.iter().find(|id| !cx.has_read(**id));
                assert!(unread.is_none(), "{p:?}: computes without weight {unread:?}, its adapter's");
                a_td
            }
        }
    }
}

/// Adds a sub-layer's result to the residual stream, with a norm before or after the addition.
fn join(
    cx: &mut Ctx<'_>,
    s: &Spec,
    part: &Part,
    names: Activations,
    [x_td, a_td]: [Val; 2],
    p: Option<NormParams>,
) -> Val {
    let (before, after) = if part.residual == Residual::Sum { (None, p) } else { (p, None) };
    let a_td = norm(cx, s, names.post_norm, a_td, before);
    let a_td = cx.scale(names.scaled, a_td, s.residual_scale * part.factors.output);
    let y_td = cx.add(names.sum, x_td, a_td);
    norm(cx, s, names.post_norm, y_td, after)
}

/// Names of the activations around a sub-layer.
#[derive(Clone, Copy)]
struct Activations {
    norm: [&'static str; 2],
    input: &'static str,
    post_norm: [&'static str; 2],
    scaled: &'static str,
    sum: &'static str,
}

impl Activations {
    fn of(module: Module) -> Activations {
        if module == Module::Cross {
            return Activations {
                norm: ["cross.norm", "cross.norm.stats"],
                input: "cross.input",
                post_norm: ["cross.post_norm", "cross.post_norm.stats"],
                scaled: "cross.scaled",
                sum: "block.crossed",
            };
        }
        if module == Module::Mlp {
            return Activations {
                norm: ["mlp.norm", "mlp.norm.stats"],
                input: "mlp.input",
                post_norm: ["mlp.post_norm", "mlp.post_norm.stats"],
                scaled: "mlp.scaled",
                sum: "block.out",
            };
        }
        Activations {
            norm: ["attn.norm", "attn.norm.stats"],
            input: "attn.input",
            post_norm: ["attn.post_norm", "attn.post_norm.stats"],
            scaled: "attn.scaled",
            sum: "block.mid",
        }
    }
}

impl BlockParams {
    /// Declares the weights of a layer, in their order: an adapter's networks come last.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, index: usize) -> BlockParams {
        let parts = &s.layers[index].parts;
        let declare = |(at, part): (usize, &Part)| PartParams::declare(w, s, index, (at == 0, part));
        let mut params: Vec<PartParams> = parts.iter().enumerate().map(declare).collect();
        for (part, params) in parts.iter().zip(&mut params) {
            params.network = HoulsbyParams::declare(w, s, part.kind.module());
        }
        let norm = s.normed(w.names.cross.unwrap_or(CrossNames::NONE).source_norm);
        let source_norm = s.ends_source(index).then(|| w.norm("source_norm", Module::Source, s.hidden, norm));
        BlockParams { parts: params, source_norm }
    }

    /// The first of its parts' sub-layers that `choose` knows.
    pub(crate) fn find<'a, T>(&'a self, choose: impl Fn(&'a SubParams) -> Option<T>) -> Option<T> {
        self.parts.iter().find_map(|part| choose(&part.sublayer))
    }

    pub(crate) fn experts(&self) -> Option<&ExpertsParams> {
        self.find(|sublayer| match sublayer {
            SubParams::Experts(experts) => Some(experts),
            _ => None,
        })
    }

    /// Keys and values of virtual tokens, if trained.
    pub(crate) fn prefix(&self) -> Option<PrefixParams> {
        self.find(|sublayer| match sublayer {
            SubParams::Attention(attention) => attention.prefix,
            _ => None,
        })
    }
}

impl PartParams {
    /// Declares the weights of a layer's part, without an adapter's network.
    fn declare(w: &mut Walk<'_>, s: &Spec, index: usize, (first, part): (bool, &Part)) -> PartParams {
        let (module, names) = (part.kind.module(), w.names);
        let (roles, after) = match module {
            Module::Mlp => (["mlp_norm", "mlp_post_norm"], names.mlp_post_norm),
            Module::Cross => {
                let [_, after] = names.cross.unwrap_or(CrossNames::NONE).norms;
                (["cross_norm", "cross_post_norm"], after)
            }
            _ => (["attn_norm", "attn_post_norm"], names.attn_post_norm),
        };
        let before = s.normed(names.norm_before(module, part.residual));
        let (has_before, has_after) = (part.residual.before(first), part.residual.after());
        PartParams {
            norm: has_before.then(|| w.norm(roles[0], module, s.hidden, before)),
            sublayer: SubParams::declare(w, s, index, &part.kind),
            post_norm: has_after.then(|| w.norm(roles[1], module, s.hidden, s.normed(after))),
            network: None,
        }
    }
}

impl SubParams {
    fn declare(w: &mut Walk<'_>, s: &Spec, index: usize, kind: &PartKind) -> SubParams {
        match (kind, s.experts_of(index)) {
            (PartKind::Attention { .. }, _) => SubParams::Attention(AttentionParams::declare(w, s, index)),
            (PartKind::Cross, _) => SubParams::Cross(CrossParams::declare(w, s)),
            (PartKind::Mlp, Some(moe)) => SubParams::Experts(ExpertsParams::declare(w, s, moe, index)),
            (PartKind::Mlp, None) => {
                SubParams::Dense(DenseParams::declare(w, s, ["up", "down"], s.ffn, None))
            }
            (PartKind::Own(own), _) => {
                let known = w.adapted.len();
                let params = own.declare(w, s, index);
                SubParams::Own(params, w.adapted.split_off(known))
            }
        }
    }
}
