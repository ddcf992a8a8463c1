//! The block of every family.
//!
//! Legend of shapes: t tokens, d hidden, e query heads x head size, k key heads x head size, f ffn.

use fathom_grad::{AttentionUse, Ctx, ParamId, RopeUse, Val};

use crate::latent::{LatentParams, latent_heads};
use crate::moe::{ExpertsParams, experts};
use crate::spec::{LayerSpec, QkNorm, Residual, Spec};

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
}

/// Weights of an MLP.
#[derive(Clone, Copy, Debug)]
pub struct DenseParams {
    /// [f, d], or gate and up on top of each other [2f, d].
    pub up: LinearParams,
    /// [d, f].
    pub down: LinearParams,
}

/// Weights of a feed-forward network.
#[derive(Clone, Copy, Debug)]
pub enum FfnParams {
    /// One for all tokens.
    Dense(DenseParams),
    /// Each token has its own few of many.
    Experts(ExpertsParams),
}

/// Weights of queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub enum QkvParams {
    /// q, k and v on top of each other: [e + 2k, d].
    Fused(LinearParams),
    /// Through latents.
    Latent(LatentParams),
}

/// Weights of one block.
#[derive(Clone, Copy, Debug)]
pub struct BlockParams {
    /// Before attention.
    pub attn_norm: Option<NormParams>,
    /// Projections to q, k and v.
    pub qkv: QkvParams,
    /// Of q.
    pub q_norm: Option<NormParams>,
    /// Of k.
    pub k_norm: Option<NormParams>,
    /// f32 [1, heads]: logits that join each row's denominator (gpt-oss).
    pub sinks: Option<ParamId>,
    /// [d, e].
    pub attn_out: LinearParams,
    /// After attention.
    pub attn_post_norm: Option<NormParams>,
    /// Before the MLP, if it does not read what attention reads.
    pub mlp_norm: Option<NormParams>,
    /// The MLP, or experts.
    pub ffn: FfnParams,
    /// After the MLP.
    pub mlp_post_norm: Option<NormParams>,
}

/// One block: `x_td` to the next block's `x_td`.
pub fn block(cx: &mut Ctx<'_>, s: &Spec, layer: &LayerSpec, p: &BlockParams, x_td: Val) -> Val {
    let ([q_te, k_tk, v_tk], h_td) = cx.rows(|cx| {
        let h_td = norm(cx, s, ["attn.norm", "attn.norm.stats"], x_td, p.attn_norm);
        (heads(cx, s, layer, p, h_td), h_td)
    });
    let o_te = cx.attention(q_te, k_tk, v_tk, attention_use(s, layer), p.sinks);
    cx.rows(|cx| {
        let o_te = values(cx, s, o_te);
        let a_td = cx.row_parallel("attn.proj", o_te, p.attn_out.weight, p.attn_out.bias);
        let a_td = norm(cx, s, ["attn.post_norm", "attn.post_norm.stats"], a_td, p.attn_post_norm);
        let a_td = cx.scale("attn.scaled", a_td, s.residual_scale);
        let y_td = cx.add("block.mid", x_td, a_td);
        let m_td = match s.residual {
            Residual::SharedNorm => h_td,
            Residual::Parallel => x_td,
            Residual::Pre | Residual::Post | Residual::Sandwich => y_td,
        };
        let m_td = norm(cx, s, ["mlp.norm", "mlp.norm.stats"], m_td, p.mlp_norm);
        let m_td = ffn(cx, s, &p.ffn, m_td);
        let m_td = norm(cx, s, ["mlp.post_norm", "mlp.post_norm.stats"], m_td, p.mlp_post_norm);
        let m_td = cx.scale("mlp.scaled", m_td, s.residual_scale);
        cx.add("block.out", y_td, m_td)
    })
}

/// q, k and v of the block's normalised input, normalised and rotated as the family wants.
fn heads(cx: &mut Ctx<'_>, s: &Spec, layer: &LayerSpec, p: &BlockParams, h_td: Val) -> [Val; 3] {
    let qkv = match (&p.qkv, &s.latent) {
        (QkvParams::Fused(qkv), _) => qkv,
        (QkvParams::Latent(p), Some(l)) => return latent_heads(cx, s, l.layout(s, layer), p, h_td),
        (QkvParams::Latent(_), None) => panic!("weights of latents, and a specification without"),
    };
    let rope = layer.rope.map(|table| RopeUse {
        table,
        head_dim: s.head_dim,
        interleaved: s.ropes[table].interleaved,
    });
    let widths = [s.q_cols(), s.kv_cols(), s.kv_cols()];
    let qkv = cx.column_parallel("attn.qkv", h_td, qkv.weight, qkv.bias);
    if s.qk_norm == QkNorm::None {
        return cx.split(["attn.q", "attn.k", "attn.v"], qkv, widths, rope);
    }
    let [q_te, k_tk, v_tk] = cx.split(["attn.q.raw", "attn.k.raw", "attn.v"], qkv, widths, None);
    let q_names = ["attn.q.all", "attn.q.norm", "attn.q.norm.stats", "attn.q.own"];
    let q_te = heads_norm(cx, s, q_names, q_te, p.q_norm);
    let k_names = ["attn.k.all", "attn.k.norm", "attn.k.norm.stats", "attn.k.own"];
    let k_tk = heads_norm(cx, s, k_names, k_tk, p.k_norm);
    match rope {
        Some(rope) => [cx.rope("attn.q", q_te, rope), cx.rope("attn.k", k_tk, rope), v_tk],
        None => [q_te, k_tk, v_tk],
    }
}

/// Normalises each head, or all heads together, which tensor parallel ranks collect for that.
fn heads_norm(cx: &mut Ctx<'_>, s: &Spec, names: [&'static str; 4], x: Val, p: Option<NormParams>) -> Val {
    let [all, out, stats, own] = names;
    if s.qk_norm == QkNorm::PerHead {
        return norm(cx, s, [out, stats], x, p);
    }
    let x = cx.all_cols(all, x);
    let x = norm(cx, s, [out, stats], x, p);
    cx.own_cols(own, x)
}

/// What attention made, without the zeros that values were filled up with.
fn values(cx: &mut Ctx<'_>, s: &Spec, o_te: Val) -> Val {
    match s.latent {
        Some(latent) if latent.value < s.head_dim => cx.trim("attn.values", o_te, s.heads, latent.value),
        _ => o_te,
    }
}

/// The feed-forward network.
fn ffn(cx: &mut Ctx<'_>, s: &Spec, p: &FfnParams, h_td: Val) -> Val {
    match (p, &s.moe) {
        (FfnParams::Dense(p), _) => mlp(cx, s, ["mlp.up", "mlp.act", "mlp.down"], p, h_td),
        (FfnParams::Experts(p), Some(m)) => experts(cx, s, m, p, h_td),
        (FfnParams::Experts(_), None) => panic!("weights of experts, and a specification without"),
    }
}

/// One MLP for all tokens.
pub(crate) fn mlp(cx: &mut Ctx<'_>, s: &Spec, names: [&'static str; 3], p: &DenseParams, h_td: Val) -> Val {
    let u_tf = cx.column_parallel(names[0], h_td, p.up.weight, p.up.bias);
    let m_tf = if s.mlp.gated {
        cx.gate(names[1], s.mlp.activation, u_tf)
    } else {
        cx.activate(names[1], s.mlp.activation, u_tf)
    };
    cx.row_parallel(names[2], m_tf, p.down.weight, p.down.bias)
}

/// A norm if the family has one here.
pub(crate) fn norm(
    cx: &mut Ctx<'_>,
    s: &Spec,
    names: [&'static str; 2],
    x: Val,
    p: Option<NormParams>,
) -> Val {
    p.map_or(x, |p| cx.norm(names, x, s.norm, p.weight, p.bias))
}

fn attention_use(s: &Spec, layer: &LayerSpec) -> AttentionUse {
    let mask = s.windows().iter().position(|window| *window == layer.window).unwrap_or(0);
    AttentionUse { mask, head_dim: s.head_dim, scale: s.attention_scale, softcap: s.attention_softcap }
}
