//! The block of every family: a mixer and a feed-forward network, each adding to the residual stream.
//!
//! Legend of shapes: t tokens, d hidden, f ffn.

use fathom_grad::{Ctx, Val};

use crate::adapter::{HoulsbyParams, PrefixParams};
use crate::attention::{AttentionParams, attention};
use crate::mlp::{DenseParams, mlp};
use crate::moe::{ExpertsParams, experts};
use crate::norm::norm;
use crate::spec::{Custom, Ffn, LayerSpec, Mixer, Residual, Spec};
use crate::weight::{Module, NormParams, Walk};

/// Weights of a mixer.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // One per layer, and the large variant is the usual one.
pub enum MixerParams {
    /// Attention.
    Attention(AttentionParams),
    /// A family's own mixer.
    Custom(Custom),
}

/// Weights of a feed-forward network.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // One per layer, and the large variant is the usual one.
pub enum FfnParams {
    /// One network for all tokens.
    Dense(DenseParams),
    /// A mixture of experts.
    Experts(ExpertsParams),
    /// A family's own network.
    Custom(Custom),
}

/// Weights of one block.
#[derive(Clone, Debug)]
pub struct BlockParams {
    /// Norm before the mixer.
    pub attn_norm: Option<NormParams>,
    /// The mixer, if the layer has one.
    pub mixer: Option<MixerParams>,
    /// Norm after the mixer.
    pub attn_post_norm: Option<NormParams>,
    /// Norm before the feed-forward network, unless it shares the mixer's input.
    pub mlp_norm: Option<NormParams>,
    /// The feed-forward network, if the layer has one.
    pub ffn: Option<FfnParams>,
    /// Norm after the feed-forward network.
    pub mlp_post_norm: Option<NormParams>,
    /// An adapter's networks after the mixer and after the feed-forward network.
    pub networks: [Option<HoulsbyParams>; 2],
}

/// One block: `x_td` to the next block's `x_td`.
pub fn block(cx: &mut Ctx<'_>, s: &Spec, layer: &LayerSpec, p: &BlockParams, x_td: Val) -> Val {
    cx.rows(|cx| {
        let h_td = norm(cx, s, ["attn.norm", "attn.norm.stats"], x_td, p.attn_norm);
        let a_td = mix(cx, s, layer, p, h_td);
        let a_td = behind(cx, s, p, 0, a_td);
        let names = ["attn.post_norm", "attn.post_norm.stats", "attn.scaled", "block.mid"];
        let y_td = join(cx, s, names, x_td, a_td, p.attn_post_norm);
        let m_td = match s.residual {
            Residual::SharedNorm => h_td,
            Residual::Parallel => x_td,
            Residual::Pre | Residual::Post | Residual::Sandwich | Residual::Sum => y_td,
        };
        let m_td = norm(cx, s, ["mlp.norm", "mlp.norm.stats"], m_td, p.mlp_norm);
        let m_td = feed_forward(cx, s, p, m_td);
        let m_td = behind(cx, s, p, 1, m_td);
        let names = ["mlp.post_norm", "mlp.post_norm.stats", "mlp.scaled", "block.out"];
        join(cx, s, names, y_td, m_td, p.mlp_post_norm)
    })
}

/// A sub-layer's result, passed through the adapter's network after it, if any.
fn behind(cx: &mut Ctx<'_>, s: &Spec, p: &BlockParams, which: usize, a_td: Option<Val>) -> Option<Val> {
    let (Some(network), Some(a_td)) = (&p.networks[which], a_td) else { return a_td };
    Some(network.forward(cx, s, which, a_td))
}

/// The mixer's residual contribution.
fn mix(cx: &mut Ctx<'_>, s: &Spec, layer: &LayerSpec, p: &BlockParams, h_td: Val) -> Option<Val> {
    Some(match p.mixer.as_ref()? {
        MixerParams::Attention(p) => attention(cx, s, layer, p, h_td),
        MixerParams::Custom(p) => p.forward(cx, s, h_td),
    })
}

/// The feed-forward network's residual contribution.
fn feed_forward(cx: &mut Ctx<'_>, s: &Spec, p: &BlockParams, h_td: Val) -> Option<Val> {
    Some(match (p.ffn.as_ref()?, &s.moe) {
        (FfnParams::Dense(p), _) => mlp(cx, s, ["mlp.up", "mlp.act", "mlp.down"], p, h_td),
        (FfnParams::Experts(p), Some(m)) => experts(cx, s, m, p, h_td),
        (FfnParams::Experts(_), None) => panic!("weights of experts, and a specification without"),
        (FfnParams::Custom(p), _) => p.forward(cx, s, h_td),
    })
}

/// Adds a sub-layer's result, if any, to the residual stream, with a norm before or after the addition.
fn join(
    cx: &mut Ctx<'_>,
    s: &Spec,
    [normed, stats, scaled, sum]: [&'static str; 4],
    x_td: Val,
    a_td: Option<Val>,
    p: Option<NormParams>,
) -> Val {
    let Some(a_td) = a_td else { return x_td };
    let (before, after) = if s.residual == Residual::Sum { (None, p) } else { (p, None) };
    let a_td = norm(cx, s, [normed, stats], a_td, before);
    let a_td = cx.scale(scaled, a_td, s.residual_scale);
    let y_td = cx.add(sum, x_td, a_td);
    norm(cx, s, [normed, stats], y_td, after)
}

impl BlockParams {
    /// Declares the weights of a layer, in their order.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, index: usize) -> BlockParams {
        let LayerSpec { mixer, ffn } = &s.layers[index];
        let ([before, after], has_mixer) = (s.residual.attention(), *mixer != Mixer::None);
        let [mlp_before, mlp_after] = s.residual.mlp().map(|norm| norm && ffn.is_some());
        let names = w.names;
        let [attn_norm, mlp_norm] = names.norms(s.residual);
        let shared = s.residual == Residual::SharedNorm;
        BlockParams {
            attn_norm: (before && (has_mixer || shared))
                .then(|| w.norm("attn_norm", Module::Attention, s.hidden, s.normed(attn_norm))),
            mixer: match mixer {
                Mixer::Attention { .. } => {
                    Some(MixerParams::Attention(AttentionParams::declare(w, s, index)))
                }
                Mixer::Custom(custom) => Some(MixerParams::Custom(custom.declare(w, s))),
                Mixer::None => None,
            },
            attn_post_norm: (after && has_mixer).then(|| {
                w.norm("attn_post_norm", Module::Attention, s.hidden, s.normed(names.attn_post_norm))
            }),
            mlp_norm: mlp_before.then(|| w.norm("mlp_norm", Module::Mlp, s.hidden, s.normed(mlp_norm))),
            ffn: ffn.map(|ffn| FfnParams::declare(w, s, index, ffn)),
            mlp_post_norm: mlp_after
                .then(|| w.norm("mlp_post_norm", Module::Mlp, s.hidden, s.normed(names.mlp_post_norm))),
            networks: [
                if has_mixer { HoulsbyParams::declare(w, s, 0) } else { None },
                if ffn.is_some() { HoulsbyParams::declare(w, s, 1) } else { None },
            ],
        }
    }
}

impl BlockParams {
    /// Keys and values of virtual tokens, if trained.
    pub(crate) fn prefix(&self) -> Option<PrefixParams> {
        match &self.mixer {
            Some(MixerParams::Attention(attention)) => attention.prefix,
            _ => None,
        }
    }
}

impl FfnParams {
    fn declare(w: &mut Walk<'_>, s: &Spec, index: usize, ffn: Ffn) -> FfnParams {
        match (ffn, s.experts_of(index)) {
            (Ffn::Custom(custom), _) => FfnParams::Custom(custom.declare(w, s)),
            (Ffn::Mlp, Some(moe)) => FfnParams::Experts(ExpertsParams::declare(w, s, moe, index)),
            (Ffn::Mlp, None) => FfnParams::Dense(DenseParams::declare(w, s, ["up", "down"], s.ffn, None)),
        }
    }
}
