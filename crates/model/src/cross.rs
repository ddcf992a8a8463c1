//! Attention to the result of another stream.
//!
//! Legend of shapes: t tokens, s rows of the other stream, d hidden, e query heads x head size, k key heads x head size.

use fathom_grad::{AttentionUse, Ctx, Keys, Val};

use crate::spec::Spec;
use crate::weight::{CrossNames, InFiles, LinearParams, Module, Parallel, Projection, Walk};

/// Weights of attention to another stream.
#[derive(Clone, Copy, Debug)]
pub struct CrossParams {
    /// [e, d].
    pub q: LinearParams,
    /// [k, d].
    pub k: LinearParams,
    /// [k, d].
    pub v: LinearParams,
    /// [d, e].
    pub out: LinearParams,
}

impl CrossParams {
    /// Declares the weights of a layer, in their order.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec) -> CrossParams {
        let [q, k, v, out] = w.names.cross.unwrap_or(CrossNames::NONE).projections;
        let (module, [e, kv], hidden) = (Module::Cross, [[s.q_cols()], [s.kv_cols()]], [s.hidden]);
        let bias = s.bias.qkv;
        let mut into = |role, cols: &[usize; 1], name| {
            let stored = InFiles::one(name, cols[0]);
            w.linear(Projection { bias, ..Projection::new(role, module, cols, s.hidden, stored) })
        };
        let [q, k, v] = [into("cross_q", &e, q), into("cross_k", &kv, k), into("cross_v", &kv, v)];
        let out = Projection::new("cross_out", module, &hidden, s.q_cols(), InFiles::one(out, s.hidden));
        let out = w.linear(Projection { bias: s.bias.attn_out, parallel: Parallel::Rows, ..out });
        CrossParams { q, k, v, out }
    }
}

/// The residual contribution of attention to `m_sd`, all of whose rows are on this rank.
pub(crate) fn cross(cx: &mut Ctx<'_>, s: &Spec, p: &CrossParams, h_td: Val, m_sd: Val) -> Val {
    let q_te = p.q.columns(cx, "cross.q", h_td);
    let how = AttentionUse {
        keys: Keys::Memory,
        // Its mask follows those of the layers' own attention.
        mask: s.reaches().len(),
        head_dim: s.head_dim,
        scale: s.attention_scale,
        softcap: s.attention_softcap,
        apart: None,
        slopes: false,
    };
    let o_te = cx.whole(|cx| {
        let k_sk = p.k.whole(cx, "cross.k", m_sd);
        let v_sk = p.v.whole(cx, "cross.v", m_sd);
        cx.attention(q_te, k_sk, v_sk, how, None)
    });
    p.out.rows(cx, "cross.proj", o_te)
}
