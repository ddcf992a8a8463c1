//! Virtual tokens before every document, whose ids are [`fathom_grad::VIRTUAL`] and those that follow: their embeddings are trained
//! (prompt tuning; Lester et al., 2021), or computed by a trained encoder (p-tuning; Liu et al., 2021), or each layer's keys and values
//! at them are trained (prefix tuning; Li and Liang, 2021). They take the first positions of their document, so nothing turns a
//! prefix's keys, and text begins behind them.

use std::collections::{BTreeMap, BTreeSet};

use fathom_grad::{Batch, Ctx, ParamId, Params, Val};
use fathom_tensor::{Activation, Device, Tensor};

use super::begin::values;
use super::{Adapter, AdapterMethod};
use crate::block::LinearParams;
use crate::model::Model;
use crate::portion::{Cut, Seen};
use crate::spec::{LayerSpec, Mixer, Spec};
use crate::walk::{Begins, InFiles, Kind, Module, Term, Walk, WeightSpec};

/// The embeddings of virtual tokens.
#[derive(Clone, Copy, Debug)]
pub struct PromptParams {
    /// [n, d].
    pub(super) rows: ParamId,
    /// [h, d], [h, h] and [d, h].
    encoder: Option<[LinearParams; 3]>,
}

/// What an encoder's parts are called here, and in files.
const ENCODER: [[&str; 3]; 3] = [
    ["prompt_encoder.0", "prompt_encoder.mlp_head.0.weight", "prompt_encoder.mlp_head.0.bias"],
    ["prompt_encoder.2", "prompt_encoder.mlp_head.2.weight", "prompt_encoder.mlp_head.2.bias"],
    ["prompt_encoder.4", "prompt_encoder.mlp_head.4.weight", "prompt_encoder.mlp_head.4.bias"],
];
/// Keys and values of a prefix: what they are called here, and in a layer's files.
const PREFIX: [[&str; 2]; 2] =
    [["prefix.keys", "prefix_embeddings.keys"], ["prefix.values", "prefix_embeddings.values"]];

/// A weight that ranks have all of.
fn weight(
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
        let mut linear = |part: usize, out: usize, inner: usize| {
            let [role, name, bias] = ENCODER[part];
            // As PyTorch begins linear layers.
            let begins = Begins::Within(inner);
            LinearParams {
                weight: weight(w, (role, at), [out, inner], (name, Term::Weight), begins),
                bias: Some(weight(w, (role, at), [1, out], (bias, Term::Bias), begins)),
                adapter: None,
            }
        };
        let encoder = encoder.map(|h| [linear(0, h, d), linear(1, h, h), linear(2, d, h)]);
        Some(PromptParams { rows, encoder })
    }

    /// `x_td` with the embeddings of virtual tokens at those.
    pub(crate) fn forward(&self, cx: &mut Ctx<'_>, x_td: Val) -> Val {
        let mut p_nd = cx.table("prompt", self.rows);
        if let Some([first, second, last]) = &self.encoder {
            let u_nh = first.whole(cx, "prompt.first", p_nd);
            let u_nh = cx.activate("prompt.first.act", Activation::Relu, u_nh);
            let u_nh = second.whole(cx, "prompt.second", u_nh);
            let u_nh = cx.activate("prompt.second.act", Activation::Relu, u_nh);
            p_nd = last.whole(cx, "prompt.last", u_nh);
        }
        cx.add_leading("embed.led", x_td, p_nd)
    }
}

/// Keys and values of a layer at virtual tokens, [n, k] both, if its model has them.
pub(crate) fn declare_prefix(w: &mut Walk<'_>, s: &Spec) -> Option<[ParamId; 2]> {
    let AdapterMethod::Prefix { tokens } = s.adapter.as_ref()?.method else { return None };
    let shape = [tokens, s.kv_cols()];
    Some(PREFIX.map(|[role, name]| {
        weight(w, (role, Module::Attention), shape, (name, Term::Whole), Begins::Standard)
    }))
}

/// `k_tk` and `v_tk` with those of a prefix at virtual tokens.
pub(crate) fn led(cx: &mut Ctx<'_>, prefix: Option<[ParamId; 2]>, [k_tk, v_tk]: [Val; 2]) -> [Val; 2] {
    let Some([keys, values]) = prefix else { return [k_tk, v_tk] };
    let (keys, values) = (cx.table("attn.prefix.k", keys), cx.table("attn.prefix.v", values));
    [cx.put_leading("attn.k.led", k_tk, keys), cx.put_leading("attn.v.led", v_tk, values)]
}

impl Adapter {
    /// Virtual tokens before every document.
    pub fn virtual_tokens(&self) -> usize {
        match self.method {
            AdapterMethod::Prompt { tokens, .. } | AdapterMethod::Prefix { tokens } => tokens,
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

    /// Whether the model can have virtual tokens.
    pub(super) fn check_leading(&self, method: AdapterMethod) -> Result<(), String> {
        let (tokens, hidden) = match method {
            AdapterMethod::Prompt { tokens, encoder } => (tokens, encoder),
            AdapterMethod::Prefix { tokens } => (tokens, None),
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
        let tokens = self.spec.virtual_tokens();
        if let Some(prompt) = self.embed.and_then(|embed| embed.prompt) {
            let mut rows = of(prompt.rows);
            for (index, layer) in prompt.encoder.iter().flatten().enumerate() {
                let bias = layer.bias.map(of).unwrap_or_default();
                rows = linear(&rows, (&of(layer.weight), &bias), params.shape(layer.weight)[1]);
                if index < 2 {
                    rows.iter_mut().for_each(|x| *x = x.max(0.0));
                }
            }
            return (!rows.is_empty()).then_some(([tokens, self.spec.hidden], rows));
        }
        let prefixes = self.blocks.iter().filter_map(|block| block.prefix());
        let parts: Vec<Vec<f32>> = prefixes.flatten().map(of).collect();
        let k = self.spec.kv_cols();
        let row =
            |row: usize| parts.iter().flat_map(move |part| part[row * k..(row + 1) * k].iter().copied());
        (!parts.is_empty()).then(|| ([tokens, parts.len() * k], (0..tokens).flat_map(row).collect()))
    }
}

/// `x W^T + b`, summed in f64.
fn linear(x: &[f32], (weight, bias): (&[f32], &[f32]), inner: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
    let row = |x: &[f32]| {
        let outs = weight.chunks_exact(inner).zip(bias);
        outs.map(|(w, b)| (dot(x, w) + f64::from(*b)) as f32).collect::<Vec<f32>>()
    };
    x.chunks_exact(inner).flat_map(row).collect()
}

/// The columns of PEFT's `prompt_embeddings` [n, 2 layers k] that a layer's keys or values are, by the end of their name.
pub(super) fn columns(name: &str, layer: usize, k: usize) -> Option<std::ops::Range<usize>> {
    let at = PREFIX.iter().position(|[_, end]| name.ends_with(end))?;
    let first = (2 * layer + at) * k;
    Some(first..first + k)
}
