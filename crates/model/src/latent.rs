//! Latent attention (DeepSeek-V2, 2024, section 2.1): queries, keys and values go through narrow latents, and all heads
//! share the rotated part of the key. A head in memory is `[rotated | own]`.
//!
//! Legend of shapes: t tokens, d hidden, e heads x key size, c columns of a latent, r rotated columns.

use fathom_grad::{Ctx, LatentUse, Val};
use fathom_tensor::NormKind;

use crate::block::{LinearParams, NormParams};
use crate::spec::{LayerSpec, Spec};

/// Sizes of latent attention; [`Spec::head_dim`] is the size of a key, the first rotary setting's columns are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Columns of the queries' latent; they are projected directly without.
    pub query: Option<usize>,
    /// Columns of the latent of keys and values.
    pub key_value: usize,
    /// Columns of a head's value.
    pub value: usize,
}

/// Weights of one layer's queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct LatentParams {
    /// To the latent of queries: [c, d], and its norm.
    pub q_down: Option<(LinearParams, NormParams)>,
    /// To queries: [e, c], or [e, d].
    pub q_up: LinearParams,
    /// To the latent of keys and values: [c, d].
    pub kv_down: LinearParams,
    /// Of that latent.
    pub kv_norm: NormParams,
    /// To what heads share: [r, d].
    pub shared: LinearParams,
    /// To each head's own part of the key and its value: [heads x (own + value), c].
    pub kv_up: LinearParams,
}

impl Latent {
    /// The sizes in one layer.
    pub(crate) fn layout(&self, s: &Spec, layer: &LayerSpec) -> LatentUse {
        let table = layer.rope.unwrap_or(0);
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

/// The norm of a latent. Its epsilon is no matter of the configuration, in DeepSeek's code and in Transformers'.
fn norm(cx: &mut Ctx<'_>, s: &Spec, names: [&'static str; 2], c_tc: Val, p: NormParams) -> Val {
    cx.norm(names, c_tc, NormKind { eps: 1e-6, ..s.norm }, p.weight, p.bias)
}

/// q, k and v of the block's normalised input; v has zeros up to the size of a key.
pub(crate) fn latent_heads(
    cx: &mut Ctx<'_>,
    s: &Spec,
    how: LatentUse,
    p: &LatentParams,
    h_td: Val,
) -> [Val; 3] {
    let c_tc = match p.q_down {
        Some((down, q_norm)) => {
            let c_tc = cx.linear("attn.q.down", h_td, down.weight, down.bias);
            norm(cx, s, ["attn.q.norm", "attn.q.norm.stats"], c_tc, q_norm)
        }
        None => h_td,
    };
    let q_te = cx.column_parallel("attn.q.up", c_tc, p.q_up.weight, p.q_up.bias);
    let q_te = cx.rope("attn.q", q_te, how.rope());
    let c_tc = cx.linear("attn.kv.down", h_td, p.kv_down.weight, p.kv_down.bias);
    let c_tc = norm(cx, s, ["attn.kv.norm", "attn.kv.norm.stats"], c_tc, p.kv_norm);
    let u_te = cx.column_parallel("attn.kv.up", c_tc, p.kv_up.weight, p.kv_up.bias);
    let r_tr = cx.linear("attn.k.shared", h_td, p.shared.weight, p.shared.bias);
    let r_tr = cx.enter("attn.k.all", r_tr);
    let [k_te, v_te] = cx.latent(["attn.k", "attn.v"], u_te, r_tr, how);
    [q_te, k_te, v_te]
}
