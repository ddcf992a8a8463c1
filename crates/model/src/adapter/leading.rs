//! Virtual tokens before every document, whose ids are [`fathom_grad::VIRTUAL`] and those that follow: their embeddings are trained
//! (prompt tuning; Lester et al., 2021), or computed by a trained encoder (p-tuning; Liu et al., 2021), or each layer's keys and values
//! at them are trained (prefix tuning; Li and Liang, 2021). They take the first positions of their document, so nothing turns a
//! prefix's keys, and text begins behind them.

use std::collections::{BTreeMap, BTreeSet};

use fathom_grad::{Batch, Ctx, ParamId, Params, Val};
use fathom_tensor::{Activation, Device, Tensor};

use super::begin::values;
use super::lstm::LstmParams;
use super::{Adapter, AdapterMethod, PromptEncoder};
use crate::block::LinearParams;
use crate::model::{Model, NOWHERE};
use crate::portion::{Cut, Seen};
use crate::spec::{LayerSpec, Mixer, Spec};
use crate::walk::{Begins, InFiles, Kind, Module, Term, Walk, WeightSpec};

/// The embeddings of virtual tokens.
#[derive(Clone, Copy, Debug)]
pub struct PromptParams {
    /// [n, d].
    pub(super) rows: ParamId,
    encoder: Option<EncoderParams>,
}

/// What computes the embeddings of virtual tokens.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // There is one.
enum EncoderParams {
    /// [h, d], [h, h] and [d, h].
    Mlp([LinearParams; 3]),
    /// An LSTM before an MLP.
    Lstm(LstmParams),
}

/// What a linear layer is called here, and its weight and its bias in files; without a name of the bias there is none.
pub(super) type Named = [&'static str; 3];

/// What the keys and values of a prefix are computed from in all layers (PEFT's `prefix_projection`): each virtual token's row goes
/// through a linear layer and a hyperbolic tangent.
#[derive(Clone, Copy, Debug)]
pub struct PrefixEncoder {
    /// [n, k].
    rows: ParamId,
    /// [h, k].
    hidden: LinearParams,
}

/// Keys and values of a layer at virtual tokens.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // A layer has one.
pub enum PrefixParams {
    /// [n, k] both.
    Rows([ParamId; 2]),
    /// Computed, by a linear layer [k, h] each.
    Encoded(PrefixEncoder, [LinearParams; 2]),
}

/// What an encoder's parts are called here, and in files.
const ENCODER: [[&str; 3]; 3] = [
    ["prompt_encoder.0", "prompt_encoder.mlp_head.0.weight", "prompt_encoder.mlp_head.0.bias"],
    ["prompt_encoder.2", "prompt_encoder.mlp_head.2.weight", "prompt_encoder.mlp_head.2.bias"],
    ["prompt_encoder.4", "prompt_encoder.mlp_head.4.weight", "prompt_encoder.mlp_head.4.bias"],
];
/// What the network of a prefix is called here, and in files: what all layers share, and what each has.
const PREFIX_ENCODER: [[&str; 3]; 3] = [
    ["prefix_encoder.0", "prefix_encoder.transform.0.weight", "prefix_encoder.transform.0.bias"],
    ["prefix_encoder.keys", "prefix_encoder.keys.weight", "prefix_encoder.keys.bias"],
    ["prefix_encoder.values", "prefix_encoder.values.weight", "prefix_encoder.values.bias"],
];
/// Keys and values of a prefix: what they are called here, and in a layer's files.
const PREFIX: [[&str; 2]; 2] =
    [["prefix.keys", "prefix_embeddings.keys"], ["prefix.values", "prefix_embeddings.values"]];

/// A weight that ranks have all of.
pub(super) fn weight(
    w: &mut Walk<'_>,
    (role, module): (&'static str, Module),
    shape: [usize; 2],
    (name, term): (&'static str, Term),
    begins: Begins,
) -> ParamId {
    let in_file = if term == Term::Bias { vec![shape[1]] } else { shape.to_vec() };
    let stored = InFiles::Whole(name.into(), in_file);
    let spec = WeightSpec::new(role, (module, Kind::Adapter), shape, Cut::Whole(Seen::Rows), stored);
    w.weight(WeightSpec { term, begins, decays: term != Term::Bias, ..spec })
}

impl PromptParams {
    /// Those of a model's adapter, if it has them.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec) -> Option<PromptParams> {
        let AdapterMethod::Prompt { tokens, encoder } = s.adapter.as_ref()?.method else { return None };
        let (d, at) = (s.hidden, Module::Input);
        let name = if encoder.is_some() { "prompt_encoder.embedding.weight" } else { "prompt_embeddings" };
        let rows = weight(w, ("prompt", at), [tokens, d], (name, Term::Whole), Begins::Standard);
        let encoder = encoder.map(|PromptEncoder { hidden: h, lstm }| {
            if lstm {
                return EncoderParams::Lstm(LstmParams::declare(w, s, h));
            }
            let mut layer = |part: usize, out: usize, inner: usize| {
                linear(w, (ENCODER[part], at), [out, inner], Begins::Within(inner))
            };
            EncoderParams::Mlp([layer(0, h, d), layer(1, h, h), layer(2, d, h)])
        });
        Some(PromptParams { rows, encoder })
    }

    /// `x_td` with the embeddings of virtual tokens at those.
    pub(crate) fn forward(&self, cx: &mut Ctx<'_>, x_td: Val) -> Val {
        let mut p_nd = cx.table("prompt", self.rows);
        match &self.encoder {
            None => {}
            Some(EncoderParams::Lstm(lstm)) => p_nd = lstm.forward(cx, p_nd),
            Some(EncoderParams::Mlp([first, second, last])) => {
                let u_nh = first.whole(cx, "prompt.first", p_nd);
                let u_nh = cx.activate("prompt.first.act", Activation::Relu, u_nh);
                let u_nh = second.whole(cx, "prompt.second", u_nh);
                let u_nh = cx.activate("prompt.second.act", Activation::Relu, u_nh);
                p_nd = last.whole(cx, "prompt.last", u_nh);
            }
        }
        cx.add_leading("embed.led", x_td, p_nd)
    }
}

/// A linear layer [out, inner] of an encoder; PyTorch's begin within their `inner`.
pub(super) fn linear(
    w: &mut Walk<'_>,
    ([role, name, bias], at): (Named, Module),
    [out, inner]: [usize; 2],
    begins: Begins,
) -> LinearParams {
    let weighed = weight(w, (role, at), [out, inner], (name, Term::Weight), begins);
    let bias = (!bias.is_empty()).then(|| weight(w, (role, at), [1, out], (bias, Term::Bias), begins));
    LinearParams { weight: weighed, bias, adapter: None }
}

impl PrefixEncoder {
    /// That of a model's adapter, if it has one.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec) -> Option<PrefixEncoder> {
        let AdapterMethod::Prefix { tokens, encoder: Some(hidden) } = s.adapter.as_ref()?.method else {
            return None;
        };
        let (k, at) = (s.kv_cols(), Module::Input);
        let name = ("prefix_encoder.embedding.weight", Term::Whole);
        let rows = weight(w, ("prefix_encoder", at), [tokens, k], name, Begins::Standard);
        Some(PrefixEncoder {
            rows,
            hidden: linear(w, (PREFIX_ENCODER[0], at), [hidden, k], Begins::Within(k)),
        })
    }

    /// [n, h].
    fn forward(&self, cx: &mut Ctx<'_>) -> Val {
        let u_nh = cx.table("attn.prefix", self.rows);
        let u_nh = self.hidden.whole(cx, "attn.prefix.first", u_nh);
        cx.activate("attn.prefix.act", Activation::Tanh, u_nh)
    }
}

/// Keys and values of a layer at virtual tokens, if its model has them.
pub(crate) fn declare_prefix(w: &mut Walk<'_>, s: &Spec) -> Option<PrefixParams> {
    let AdapterMethod::Prefix { tokens, encoder } = s.adapter.as_ref()?.method else { return None };
    let (k, at) = (s.kv_cols(), Module::Attention);
    let Some(hidden) = encoder else {
        return Some(PrefixParams::Rows(
            PREFIX.map(|[role, name]| {
                weight(w, (role, at), [tokens, k], (name, Term::Whole), Begins::Standard)
            }),
        ));
    };
    // A walk past one layer alone has none of what all share.
    let nothing = LinearParams { weight: NOWHERE, bias: None, adapter: None };
    let of = w.prefix.unwrap_or(PrefixEncoder { rows: NOWHERE, hidden: nothing });
    let layer = |part: usize| linear(w, (PREFIX_ENCODER[part], at), [k, hidden], Begins::Within(hidden));
    Some(PrefixParams::Encoded(of, [1, 2].map(layer)))
}

/// `k_tk` and `v_tk` with those of a prefix at virtual tokens.
pub(crate) fn led(cx: &mut Ctx<'_>, prefix: Option<&PrefixParams>, [k_tk, v_tk]: [Val; 2]) -> [Val; 2] {
    let [keys, values] = match prefix {
        None => return [k_tk, v_tk],
        Some(PrefixParams::Rows([keys, values])) => {
            [cx.table("attn.prefix.k", *keys), cx.table("attn.prefix.v", *values)]
        }
        Some(PrefixParams::Encoded(encoder, [keys, values])) => {
            let u_nh = encoder.forward(cx);
            [keys.whole(cx, "attn.prefix.k", u_nh), values.whole(cx, "attn.prefix.v", u_nh)]
        }
    };
    [cx.put_leading("attn.k.led", k_tk, keys), cx.put_leading("attn.v.led", v_tk, values)]
}

impl Adapter {
    /// Virtual tokens before every document.
    pub fn virtual_tokens(&self) -> usize {
        match self.method {
            AdapterMethod::Prompt { tokens, .. } | AdapterMethod::Prefix { tokens, .. } => tokens,
            AdapterMethod::Lora { .. } | AdapterMethod::Factors | AdapterMethod::Networks(_) => 0,
        }
    }

    /// An adapter of virtual tokens.
    pub fn leading(method: AdapterMethod) -> Adapter {
        Adapter::of(method, BTreeMap::new(), BTreeSet::new())
    }
}

impl Spec {
    /// Virtual tokens before every document, which an adapter trains.
    pub fn virtual_tokens(&self) -> usize {
        self.adapter.as_ref().map_or(0, |adapter| adapter.virtual_tokens())
    }

    /// A network that all layers share computes the keys and values of a prefix.
    pub(crate) fn encodes_prefix(&self) -> bool {
        let method = self.adapter.as_ref().map(|adapter| adapter.method);
        matches!(method, Some(AdapterMethod::Prefix { encoder: Some(_), .. }))
    }

    /// Whether the model can have virtual tokens.
    pub(super) fn check_leading(&self, method: AdapterMethod) -> Result<(), String> {
        let (tokens, hidden) = match method {
            AdapterMethod::Prompt { tokens, encoder } => (tokens, encoder.map(|encoder| encoder.hidden)),
            AdapterMethod::Prefix { tokens, encoder } => (tokens, encoder),
            _ => return Ok(()),
        };
        if tokens == 0 || hidden.is_some_and(|hidden| hidden < 2) {
            return Err("needs at least one virtual token, and an encoder of at least two columns".into());
        }
        if self.encoder.is_some() {
            return Err("is not trained of encoders".into());
        }
        let attends = |layer: &LayerSpec| matches!(layer.mixer, Mixer::Attention { .. });
        if matches!(method, AdapterMethod::Prefix { .. })
            && (self.latent.is_some() || !self.layers.iter().all(attends))
        {
            return Err("a prefix is of keys and values, which not every layer of this model has".into());
        }
        Ok(())
    }
}

impl Model {
    /// Which tokens are text, for [`Batch::text`], where the model needs it.
    pub fn text(&self, device: &Device, ids: &[i32]) -> Option<Tensor> {
        let replaces = |adapter: &Adapter| matches!(adapter.method, AdapterMethod::Prefix { .. });
        self.spec.adapter.as_deref().filter(|adapter| replaces(adapter)).map(|_| Batch::text_of(device, ids))
    }

    /// PEFT's `prompt_embeddings` of a whole model: embeddings [n, d], or of each layer its keys and values in turn, [n, 2 layers k].
    pub(super) fn prompt_embeddings(
        &self,
        device: &Device,
        params: &Params,
    ) -> Option<([usize; 2], Vec<f32>)> {
        let of = |id| values(device, params, id);
        let through = |layer: &LinearParams, x: &[f32]| {
            let bias = layer.bias.map(of).unwrap_or_default();
            product(x, (&of(layer.weight), &bias), params.shape(layer.weight)[1])
        };
        let tokens = self.spec.virtual_tokens();
        if let Some(prompt) = self.embed.and_then(|embed| embed.prompt) {
            let mut rows = of(prompt.rows);
            match &prompt.encoder {
                None => {}
                Some(EncoderParams::Lstm(lstm)) => rows = lstm.on_host(rows, &of, &through),
                Some(EncoderParams::Mlp([first, second, last])) => {
                    for layer in [first, second] {
                        rows = through(layer, &rows);
                        rows.iter_mut().for_each(|x| *x = x.max(0.0));
                    }
                    rows = through(last, &rows);
                }
            }
            return (!rows.is_empty()).then_some(([tokens, self.spec.hidden], rows));
        }
        let prefixes = self.blocks.iter().filter_map(|block| block.prefix());
        let of_layer = |prefix: PrefixParams| match prefix {
            PrefixParams::Rows(both) => both.map(of),
            PrefixParams::Encoded(PrefixEncoder { rows, hidden }, both) => {
                let mut u = through(&hidden, &of(rows));
                u.iter_mut().for_each(|x| *x = f64::from(*x).tanh() as f32);
                both.map(|layer| through(&layer, &u))
            }
        };
        let parts: Vec<Vec<f32>> = prefixes.flat_map(of_layer).collect();
        let k = self.spec.kv_cols();
        let row =
            |row: usize| parts.iter().flat_map(move |part| part[row * k..(row + 1) * k].iter().copied());
        (!parts.is_empty()).then(|| ([tokens, parts.len() * k], (0..tokens).flat_map(row).collect()))
    }
}

/// `x W^T + b`, summed in f64; without a bias none is added.
fn product(x: &[f32], (weight, bias): (&[f32], &[f32]), inner: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
    let row = |x: &[f32]| {
        let biases = bias.iter().copied().chain(std::iter::repeat(0.0));
        let outs = weight.chunks_exact(inner).zip(biases);
        outs.map(|(w, b)| (dot(x, w) + f64::from(b)) as f32).collect::<Vec<f32>>()
    };
    x.chunks_exact(inner).flat_map(row).collect()
}

/// The columns of PEFT's `prompt_embeddings` [n, 2 layers k] that a layer's keys or values are, by the end of their name.
pub(super) fn columns(name: &str, layer: usize, k: usize) -> Option<std::ops::Range<usize>> {
    let at = PREFIX.iter().position(|[_, end]| name.ends_with(end))?;
    let first = (2 * layer + at) * k;
    Some(first..first + k)
}
