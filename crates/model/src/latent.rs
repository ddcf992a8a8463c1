//! Latent attention (DeepSeek-V2, 2024, section 2.1): queries, keys and values go through narrow latents, and all heads
//! share the rotated part of the key. A head in memory is `[rotated | own]`.
//!
//! Legend of shapes: t tokens, d hidden, e heads x key size, c columns of a latent, r rotated columns.

use fathom_grad::{Ctx, LatentUse, Val};
use fathom_tensor::NormKind;

use crate::spec::{Latent, LayerSpec, Spec};
use crate::weight::{
    InFiles, InputSharing, LatentNames, LinearParams, Module, NormParams, NormSpec, Parallel, Projection,
    Qkv, Walk,
};

/// Weights of one layer's queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct LatentParams {
    /// Projection to the query latent [c, d], and its norm.
    pub q_down: Option<(LinearParams, NormParams)>,
    /// Projection to queries: [e, c], or [e, d].
    pub q_up: LinearParams,
    /// Projection to the key/value latent: [c, d].
    pub kv_down: LinearParams,
    /// Norm of that latent.
    pub kv_norm: NormParams,
    /// Projection to the shared key part: [r, d].
    pub shared: LinearParams,
    /// Projection to each head's own key part and value: [heads x (own + value), c].
    pub kv_up: LinearParams,
}

impl Latent {
    /// The sizes in one layer.
    pub(crate) fn layout(&self, s: &Spec, layer: &LayerSpec) -> LatentUse {
        let table = layer.rope().unwrap_or(0);
        let rope = &s.ropes[table];
        LatentUse {
            heads: s.heads,
            own: s.head_dim - rope.rot_dim,
            rotated: rope.rot_dim,
            value: self.value,
            table,
            interleaved: rope.interleaved,
        }
    }
}

/// Projection from a latent to heads, split among ranks.
fn up<'a>(role: &'static str, out: &'a [usize], inner: usize, stored: InFiles) -> Projection<'a> {
    Projection::new(role, Module::Attention, out, inner, stored)
}

/// Projection from the residual stream to a latent, whole on every rank.
fn down<'a>(s: &Spec, role: &'static str, out: &'a [usize], stored: InFiles) -> Projection<'a> {
    let (bias, parallel) = (s.bias.qkv, Parallel::Whole(InputSharing::Rows));
    Projection { bias, parallel, ..up(role, out, s.hidden, stored) }
}

impl LatentParams {
    /// Declares the weights of a layer, in their order.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, l: &Latent, layer: &LayerSpec) -> LatentParams {
        let names = match w.names.qkv {
            Qkv::Latent(names) => names,
            _ => LatentNames { q: "", q_latent: [""; 3], kv_latent: [""; 3] },
        };
        let how = l.layout(s, layer);
        let (all, module) = (l.key_value + how.rotated, Module::Attention);
        let normed = |name| NormSpec { name, bias: false, seen: InputSharing::Rows };
        let (heads_cols, q_inner) = (s.heads * (how.own + l.value), l.query.unwrap_or(s.hidden));
        LatentParams {
            q_down: l.query.map(|cols| {
                let weight = w.linear(down(s, "q_down", &[cols], InFiles::one(names.q_latent[0], cols)));
                (weight, w.norm("q_latent_norm", module, cols, normed(names.q_latent[1])))
            }),
            q_up: w.linear(up("q_up", &[s.q_cols()], q_inner, names.queries(s, how, l.query.is_some()))),
            kv_down: w.linear(down(s, "kv_down", &[l.key_value], names.key_value(all, 0..l.key_value))),
            kv_norm: w.norm("kv_latent_norm", module, l.key_value, normed(names.kv_latent[1])),
            shared: w.linear(down(s, "k_shared", &[how.rotated], names.key_value(all, l.key_value..all))),
            kv_up: {
                let stored = InFiles::one(names.kv_latent[2], heads_cols);
                w.linear(up("kv_up", &[heads_cols], l.key_value, stored))
            },
        }
    }
}

/// Norm of a latent. Its epsilon is not configurable in DeepSeek's code and in Transformers.
fn norm(cx: &mut Ctx<'_>, s: &Spec, names: [&'static str; 2], c_tc: Val, p: NormParams) -> Val {
    cx.norm(names, c_tc, NormKind { eps: 1e-6, ..s.norm }, p.weight, p.bias)
}

/// q, k and v of the block's normalised input; v is padded with zeros to the size of a key.
pub(crate) fn latent_heads(
    cx: &mut Ctx<'_>,
    s: &Spec,
    how: LatentUse,
    p: &LatentParams,
    h_td: Val,
) -> [Val; 3] {
    let c_tc = match p.q_down {
        Some((down, q_norm)) => {
            let c_tc = down.whole(cx, "attn.q.down", h_td);
            norm(cx, s, ["attn.q.norm", "attn.q.norm.stats"], c_tc, q_norm)
        }
        None => h_td,
    };
    let q_te = p.q_up.columns(cx, "attn.q.up", c_tc);
    let q_te = cx.rope("attn.q", q_te, how.rope());
    let c_tc = p.kv_down.whole(cx, "attn.kv.down", h_td);
    let c_tc = norm(cx, s, ["attn.kv.norm", "attn.kv.norm.stats"], c_tc, p.kv_norm);
    let u_te = p.kv_up.columns(cx, "attn.kv.up", c_tc);
    let r_tr = p.shared.whole(cx, "attn.k.shared", h_td);
    let r_tr = cx.enter("attn.k.all", r_tr);
    let [k_te, v_te] = cx.latent(["attn.k", "attn.v"], u_te, r_tr, how);
    [q_te, k_te, v_te]
}
