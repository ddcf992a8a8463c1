//! Attention: projections to queries, keys and values, scores, and the output projection to the residual stream.
//!
//! Legend of shapes: t tokens, d hidden, e query heads x head size, k key heads x head size.

use fathom_grad::{AttentionUse, Ctx, Keys, ParamId, RelativeUse, RopeUse, Val};
use fathom_tensor::Activation;

use crate::adapter::{PrefixParams, declare_prefix, led};
use crate::latent::{LatentParams, latent_heads};
use crate::norm::norm;
use crate::spec::{LayerSpec, PositionBias, QkNorm, Reach, Relative, Spec};
use crate::weight::{
    Begins, Cut, DistanceParams, InFiles, InputSharing, Kind, LinearParams, Module, NOWHERE, NormParams,
    NormSpec, Parallel, Projection, Walk, WeightSpec,
};

/// Weights of attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionParams {
    /// Projections to q, k and v.
    pub qkv: QkvParams,
    /// Norm of q.
    pub q_norm: Option<NormParams>,
    /// Norm of k.
    pub k_norm: Option<NormParams>,
    /// f32 [1, heads]: logits that join each row's denominator (gpt-oss).
    pub sinks: Option<ParamId>,
    /// f32 [buckets, heads]: terms of scores by distance, if any.
    pub biases: Option<ParamId>,
    /// Relative positions in the scores, if any.
    pub relative: Option<RelativeParams>,
    /// [d, e].
    pub out: LinearParams,
    /// Keys and values at an adapter's virtual tokens.
    pub prefix: Option<PrefixParams>,
}

/// Relative positions in one layer's scores.
#[derive(Clone, Copy, Debug)]
pub struct RelativeParams {
    /// Shared by all layers.
    pub distances: DistanceParams,
    /// Projection to position keys, unless the content's is used.
    pub keys: Option<LinearParams>,
    /// Projection to position queries, unless the content's is used.
    pub queries: Option<LinearParams>,
}

/// Weights of queries, keys and values.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // One per layer, and the large variant is the usual one.
pub enum QkvParams {
    /// q, k and v on top of each other: [e + 2k, d]; with gates, q, gates, k and v: [2e + 2k, d].
    Fused(LinearParams),
    /// Through latents.
    Latent(LatentParams),
}

/// Attention's residual contribution: `h_td` to `a_td`.
pub(crate) fn attention(
    cx: &mut Ctx<'_>,
    s: &Spec,
    layer: &LayerSpec,
    p: &AttentionParams,
    h_td: Val,
) -> Val {
    let ([q_te, k_tk, v_tk], gate_te) = heads(cx, s, layer, p, h_td);
    let how = attention_use(s, layer.reach());
    let o_te = cx.whole(|cx| {
        let [k_tk, v_tk] = led(cx, p.prefix.as_ref(), [k_tk, v_tk]);
        match (&p.relative, s.relative()) {
            (Some(r), Some(relative)) => disentangled(cx, s, (p, r, &relative), how.mask, [q_te, k_tk, v_tk]),
            _ => match (p.biases, s.position_bias, layer.reach()) {
                (Some(table), Some(bias), Some(reach)) => {
                    let table = cx.table("attn.bias", table);
                    cx.biased_attention([q_te, k_tk, v_tk], (table, bias.rows(reach)), how)
                }
                _ => cx.attention(q_te, k_tk, v_tk, how, p.sinks),
            },
        }
    });
    let o_te = values(cx, s, o_te);
    let o_te = gated(cx, o_te, gate_te);
    p.out.rows(cx, "attn.proj", o_te)
}

/// Attention with relative distances in its scores: the table's rows are projected to keys and queries, with separate
/// projections or the content's.
fn disentangled(
    cx: &mut Ctx<'_>,
    s: &Spec,
    (p, r, relative): (&AttentionParams, &RelativeParams, &Relative),
    mask: usize,
    qkv: [Val; 3],
) -> Val {
    let r_sd = cx.table("attn.distances", r.distances.table);
    let r_sd = norm(cx, s, ["attn.distances.norm", "attn.distances.norm.stats"], r_sd, r.distances.norm);
    let [mut queries, mut keys] = [None; 2];
    if let (true, QkvParams::Fused(qkv)) = (relative.shared, &p.qkv) {
        let all = qkv.whole(cx, "attn.distances.qkv", r_sd);
        let names = ["attn.distances.q", "attn.distances.k", "attn.distances.v"];
        let [q_se, k_se, _] = cx.split(names, all, [s.q_cols(), s.kv_cols(), s.kv_cols()], None);
        (queries, keys) = (Some(q_se), Some(k_se));
    }
    let mut project = |name, p: Option<LinearParams>| p.map(|p| p.whole(cx, name, r_sd));
    let keys = project("attn.distances.k", r.keys).or(keys).filter(|_| relative.c2p);
    let queries = project("attn.distances.q", r.queries).or(queries).filter(|_| relative.p2c);
    let Relative { distances, c2p, p2c, .. } = *relative;
    let how = RelativeUse { mask, head_dim: s.head_dim, scale: s.attention_scale, distances, c2p, p2c };
    cx.relative_attention(qkv, keys, queries, how)
}

/// q, k and v of the block's normalised input, normalised and rotated as the specification says, and their gates.
fn heads(
    cx: &mut Ctx<'_>,
    s: &Spec,
    layer: &LayerSpec,
    p: &AttentionParams,
    h_td: Val,
) -> ([Val; 3], Option<Val>) {
    let qkv = match (&p.qkv, &s.latent) {
        (QkvParams::Fused(qkv), _) => qkv,
        (QkvParams::Latent(p), Some(l)) => {
            return (latent_heads(cx, s, l.layout(s, layer), p, h_td), None);
        }
        (QkvParams::Latent(_), None) => panic!("weights of latents, and a specification without"),
    };
    let rope = layer.rope().map(|table| RopeUse {
        table,
        head_dim: s.head_dim,
        interleaved: s.ropes[table].interleaved,
    });
    let [q, kv] = [s.q_cols(), s.kv_cols()];
    let qkv = qkv.columns(cx, "attn.qkv", h_td);
    if s.qk_norm == QkNorm::None && !s.attention_gate {
        return (cx.split(["attn.q", "attn.k", "attn.v"], qkv, [q, kv, kv], rope), None);
    }
    let ([q_te, k_tk, v_tk], gate_te) = if s.attention_gate {
        let names = ["attn.q.raw", "attn.gate.raw", "attn.k.raw", "attn.v"];
        let [q_te, gate_te, k_tk, v_tk] = cx.split(names, qkv, [q, q, kv, kv], None);
        ([q_te, k_tk, v_tk], Some(gate_te))
    } else {
        (cx.split(["attn.q.raw", "attn.k.raw", "attn.v"], qkv, [q, kv, kv], None), None)
    };
    let q_names = ["attn.q.all", "attn.q.norm", "attn.q.norm.stats", "attn.q.own"];
    let q_te = heads_norm(cx, s, q_names, q_te, p.q_norm);
    let k_names = ["attn.k.all", "attn.k.norm", "attn.k.norm.stats", "attn.k.own"];
    let k_tk = heads_norm(cx, s, k_names, k_tk, p.k_norm);
    let qkv = match rope {
        Some(rope) => [cx.rope("attn.q", q_te, rope), cx.rope("attn.k", k_tk, rope), v_tk],
        None => [q_te, k_tk, v_tk],
    };
    (qkv, gate_te)
}

/// Attention's result times the sigmoid of its gates, if it has any.
fn gated(cx: &mut Ctx<'_>, o_te: Val, gate_te: Option<Val>) -> Val {
    let Some(gate_te) = gate_te else { return o_te };
    let gate_te = cx.activate("attn.gate", Activation::Sigmoid, gate_te);
    cx.product("attn.gated", o_te, gate_te)
}

/// Normalises each head, or all heads together, which tensor-parallel ranks gather first.
fn heads_norm(cx: &mut Ctx<'_>, s: &Spec, names: [&'static str; 4], x: Val, p: Option<NormParams>) -> Val {
    let [all, out, stats, own] = names;
    if s.qk_norm != QkNorm::Full {
        return norm(cx, s, [out, stats], x, p);
    }
    let x = cx.all_cols(all, x);
    let x = norm(cx, s, [out, stats], x, p);
    cx.own_cols(own, x)
}

/// Attention's result without the zeros that pad values.
fn values(cx: &mut Ctx<'_>, s: &Spec, o_te: Val) -> Val {
    match s.latent {
        Some(latent) if latent.value < s.head_dim => cx.trim("attn.values", o_te, s.heads, latent.value),
        _ => o_te,
    }
}

/// Attention of this reach.
pub(crate) fn attention_use(s: &Spec, reach: Option<Reach>) -> AttentionUse {
    let mask = s.reaches().iter().position(|other| Some(*other) == reach).unwrap_or(0);
    AttentionUse {
        keys: Keys::Own,
        mask,
        head_dim: s.head_dim,
        scale: s.attention_scale,
        softcap: s.attention_softcap,
        apart: reach.filter(|reach| reach.looks_ahead()).map(|_| s.masks()),
        slopes: s.slopes,
    }
}

impl AttentionParams {
    /// Declares the weights of a layer's attention, in their order.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, index: usize) -> AttentionParams {
        let (names, [q, kv], qk) = (w.names, [s.q_cols(), s.kv_cols()], s.qk_norm != QkNorm::None);
        // Tensor-parallel ranks normalise their own heads, or all heads alike.
        let (widths, seen) = match s.qk_norm {
            QkNorm::Full => ([q, kv], InputSharing::Same),
            _ => ([s.head_dim; 2], InputSharing::Own),
        };
        let (module, all, out) = (Module::Attention, [q, q, kv, kv], [s.hidden]);
        let groups = if s.attention_gate { &all[..] } else { &all[1..] };
        let of_heads = |name: &'static str| NormSpec { name, bias: false, seen };
        let qkv = Projection::new("qkv", module, groups, s.hidden, names.qkv(s));
        let proj = InFiles::one(names.attn_out, s.hidden);
        let proj = Projection::new("attn_out", module, &out, s.attention_cols(), proj);
        let (heads, stored) = ([s.heads], InFiles::whole(names.sinks, vec![s.heads]));
        let sinks = (module, Kind::Wide);
        let sinks = WeightSpec::new("sinks", sinks, [1, s.heads], Cut::Rows(&heads), stored);
        AttentionParams {
            qkv: match &s.latent {
                Some(latent) => QkvParams::Latent(LatentParams::declare(w, s, latent, &s.layers[index])),
                None => QkvParams::Fused(w.linear(Projection { bias: s.bias.qkv, ..qkv })),
            },
            q_norm: qk.then(|| w.norm("q_norm", module, widths[0], of_heads(names.q_norm))),
            k_norm: qk.then(|| w.norm("k_norm", module, widths[1], of_heads(names.k_norm))),
            sinks: s.sinks.then(|| w.weight(sinks)),
            biases: declare_biases(w, s, index),
            relative: s.relative().map(|relative| RelativeParams::declare(w, s, &relative)),
            out: w.linear(Projection { bias: s.bias.attn_out, parallel: Parallel::Rows, ..proj }),
            prefix: declare_prefix(w, s),
        }
    }
}

/// Declares a layer's table of biases by distance, or finds that of its stack.
fn declare_biases(w: &mut Walk<'_>, s: &Spec, index: usize) -> Option<ParamId> {
    let PositionBias { buckets, .. } = s.position_bias?;
    if s.has_biases(index) {
        let (shape, stored) = ([buckets, s.heads], InFiles::one(w.names.distances, buckets));
        // An encoder's is outside the layers in files.
        let module = if s.encoder.is_some() { Module::Input } else { Module::Attention };
        let at = (module, Kind::Wide);
        let table = WeightSpec::new("biases", at, shape, Cut::Cols, stored);
        let readers = s.readers_of_biases(index);
        w.biases = Some(w.weight(WeightSpec { begins: Begins::Normal, readers, ..table }));
    }
    Some(w.biases.unwrap_or(NOWHERE))
}

impl DistanceParams {
    /// Declares an encoder's table of distances.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, relative: &Relative) -> DistanceParams {
        let [table, norm] = w.names.encoder.map_or([""; 2], |names| names.distances);
        let (rows, at) = (2 * relative.distances.span, (Module::Input, Kind::Table));
        let (cut, stored) = (Cut::Whole(InputSharing::Own), InFiles::one(table, rows));
        let table = w.weight(WeightSpec::new("distances", at, [rows, s.hidden], cut, stored));
        // Each rank reads it for its own heads.
        let normed = NormSpec { seen: InputSharing::Own, ..s.normed(norm) };
        let norm = relative.normed.then(|| w.norm("distances_norm", Module::Input, s.hidden, normed));
        DistanceParams { table, norm }
    }
}

impl RelativeParams {
    /// Declares a layer's own projections of distances.
    fn declare(w: &mut Walk<'_>, s: &Spec, relative: &Relative) -> RelativeParams {
        let nowhere = DistanceParams { table: ParamId(u32::MAX), norm: None };
        let ([keys, queries], cols) =
            (w.names.encoder.map_or([""; 2], |names| names.positions), [s.q_cols()]);
        let own = |role, name| {
            let stored = InFiles::one(name, cols[0]);
            Projection { bias: true, ..Projection::new(role, Module::Attention, &cols, s.hidden, stored) }
        };
        let (c2p, p2c) = (relative.c2p && !relative.shared, relative.p2c && !relative.shared);
        RelativeParams {
            distances: w.distances.unwrap_or(nowhere),
            keys: c2p.then(|| w.linear(own("position_keys", keys))),
            queries: p2c.then(|| w.linear(own("position_queries", queries))),
        }
    }
}
