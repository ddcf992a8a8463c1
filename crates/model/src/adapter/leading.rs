//! Virtual tokens before every document, with ids from [`fathom_grad::VIRTUAL`] on. Their embeddings are trained
//! (prompt tuning; Lester et al., 2021) or computed by a trained encoder (p-tuning; Liu et al., 2021), or each
//! layer's keys and values at them are trained (prefix tuning; Li and Liang, 2021). They take the first positions of
//! their document, so a prefix's keys are not rotated, and the text's positions follow.

use std::collections::{BTreeMap, BTreeSet};

use fathom_grad::{Ctx, ParamId, Val};
use fathom_tensor::Activation;

use super::lstm::LstmParams;
use super::weights::{linear, weight};
use crate::spec::{Adapter, AdapterMethod, LayerSpec, PromptEncoder, Spec};
use crate::weight::{Begins, LinearParams, Module, NOWHERE, PrefixEncoder, Term, Walk};

/// The embeddings of virtual tokens.
#[derive(Clone, Copy, Debug)]
pub struct PromptParams {
    /// [n, d].
    pub(super) rows: ParamId,
    pub(super) encoder: Option<EncoderParams>,
}

/// Encoder of virtual tokens' embeddings.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // There is one.
pub(super) enum EncoderParams {
    /// [h, d], [h, h] and [d, h].
    Mlp([LinearParams; 3]),
    /// An LSTM followed by an MLP.
    Lstm(LstmParams),
}

/// A layer's keys and values at virtual tokens.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // A layer has one.
pub enum PrefixParams {
    /// [n, k] both.
    Rows([ParamId; 2]),
    /// Computed, each by a linear layer [k, h].
    Encoded(PrefixEncoder, [LinearParams; 2]),
}

/// Roles and names in files of an encoder's parts.
const ENCODER: [[&str; 3]; 3] = [
    ["prompt_encoder.0", "prompt_encoder.mlp_head.0.weight", "prompt_encoder.mlp_head.0.bias"],
    ["prompt_encoder.2", "prompt_encoder.mlp_head.2.weight", "prompt_encoder.mlp_head.2.bias"],
    ["prompt_encoder.4", "prompt_encoder.mlp_head.4.weight", "prompt_encoder.mlp_head.4.bias"],
];
/// Roles and names in files of a prefix's network: one layer shared by all blocks, and each block's own.
const PREFIX_ENCODER: [[&str; 3]; 3] = [
    ["prefix_encoder.0", "prefix_encoder.transform.0.weight", "prefix_encoder.transform.0.bias"],
    ["prefix_encoder.keys", "prefix_encoder.keys.weight", "prefix_encoder.keys.bias"],
    ["prefix_encoder.values", "prefix_encoder.values.weight", "prefix_encoder.values.bias"],
];
/// Roles of a prefix's keys and values, and their names in a layer's files.
const PREFIX: [[&str; 2]; 2] =
    [["prefix.keys", "prefix_embeddings.keys"], ["prefix.values", "prefix_embeddings.values"]];

impl PromptParams {
    /// Declares those of the model's adapter, if any.
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

    /// Replaces the rows of `x_td` at virtual tokens with their embeddings.
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

impl PrefixEncoder {
    /// Declares that of the model's adapter, if any.
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

    /// Hidden states [n, h].
    fn forward(&self, cx: &mut Ctx<'_>) -> Val {
        let u_nh = cx.table("attn.prefix", self.rows);
        let u_nh = self.hidden.whole(cx, "attn.prefix.first", u_nh);
        cx.activate("attn.prefix.act", Activation::Tanh, u_nh)
    }
}

/// Declares a layer's keys and values at virtual tokens, if its model has them.
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
    // A walk over a single layer does not visit the shared encoder.
    let nothing = LinearParams { weight: NOWHERE, bias: None, adapter: None };
    let of = w.prefix.unwrap_or(PrefixEncoder { rows: NOWHERE, hidden: nothing });
    let layer = |part: usize| linear(w, (PREFIX_ENCODER[part], at), [k, hidden], Begins::Within(hidden));
    Some(PrefixParams::Encoded(of, [1, 2].map(layer)))
}

/// `k_tk` and `v_tk`, with the prefix's values at virtual tokens.
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
    /// Number of virtual tokens before every document.
    pub fn virtual_tokens(&self) -> usize {
        match self.method {
            AdapterMethod::Prompt { tokens, .. } | AdapterMethod::Prefix { tokens, .. } => tokens,
            AdapterMethod::Lora { .. } | AdapterMethod::Factors | AdapterMethod::Networks(_) => 0,
        }
    }

    /// Builds an adapter of virtual tokens.
    pub fn leading(method: AdapterMethod) -> Adapter {
        Adapter::of(method, BTreeMap::new(), BTreeSet::new())
    }
}

impl Spec {
    /// Number of trained virtual tokens before every document.
    pub fn virtual_tokens(&self) -> usize {
        self.adapter.as_ref().map_or(0, |adapter| adapter.virtual_tokens())
    }

    /// Returns whether a network shared by all layers computes the keys and values of a prefix.
    pub(crate) fn encodes_prefix(&self) -> bool {
        let method = self.adapter.as_ref().map(|adapter| adapter.method);
        matches!(method, Some(AdapterMethod::Prefix { encoder: Some(_), .. }))
    }

    /// Refuses virtual tokens that the model cannot have.
    pub(super) fn check_leading(&self, method: AdapterMethod) -> Result<(), String> {
        let (tokens, hidden) = match method {
            AdapterMethod::Prompt { tokens, encoder } => (tokens, encoder.map(|encoder| encoder.hidden)),
            AdapterMethod::Prefix { tokens, encoder } => (tokens, encoder),
            _ => return Ok(()),
        };
        if tokens == 0 || hidden.is_some_and(|hidden| hidden < 2) {
            return Err("needs at least one virtual token, and an encoder of at least two columns".into());
        }
        if self.encoder.is_some() || self.source > 0 {
            let model = if self.source > 0 { "an encoder-decoder" } else { "an encoder" };
            return Err(format!(
                "puts virtual tokens before a decoder's text, and the model is {model}; take lora or ia3"
            ));
        }
        let attends = |layer: &LayerSpec| layer.reach().is_some();
        if matches!(method, AdapterMethod::Prefix { .. })
            && (self.latent.is_some() || !self.layers.iter().all(attends))
        {
            return Err("a prefix is of keys and values, which not every layer of this model has".into());
        }
        Ok(())
    }
}

/// Columns of PEFT's `prompt_embeddings` [n, 2 layers k] with a layer's keys or values; the end of `name` decides
/// which.
pub(super) fn columns(name: &str, layer: usize, k: usize) -> Option<std::ops::Range<usize>> {
    let at = PREFIX.iter().position(|[_, end]| name.ends_with(end))?;
    let first = (2 * layer + at) * k;
    Some(first..first + k)
}
