//! A model's virtual tokens: their ids, and their embeddings in files.

use std::borrow::Cow;

use fathom_grad::{Batch, Params, VIRTUAL};
use fathom_tensor::{Device, Tensor};

use super::begin::values;
use super::leading::{EncoderParams, PrefixParams};
use crate::model::Model;
use crate::spec::{Adapter, AdapterMethod};
use crate::weight::{LinearParams, PrefixEncoder};

impl Model {
    /// Mask of text tokens for [`Batch::text`], where the model needs it.
    pub fn text(&self, device: &Device, ids: &[i32]) -> Option<Tensor> {
        let replaces = |adapter: &Adapter| matches!(adapter.method, AdapterMethod::Prefix { .. });
        self.spec.adapter.as_deref().filter(|adapter| replaces(adapter)).map(|_| Batch::text_of(device, ids))
    }

    /// PEFT's `prompt_embeddings` of a whole model: embeddings [n, d], or each layer's keys and values in turn, [n, 2
    /// layers k].
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

/// `x W^T + b`, summed in f64; `bias` may be empty.
fn product(x: &[f32], (weight, bias): (&[f32], &[f32]), inner: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
    let row = |x: &[f32]| {
        let biases = bias.iter().copied().chain(std::iter::repeat(0.0));
        let outs = weight.chunks_exact(inner).zip(biases);
        outs.map(|(w, b)| (dot(x, w) + f64::from(b)) as f32).collect::<Vec<f32>>()
    };
    x.chunks_exact(inner).flat_map(row).collect()
}

impl Adapter {
    /// Ids for the embedding lookup of a model with this adapter: tokens with trained rows map to those rows.
    fn looked_up<'a>(&self, ids: &'a [i32]) -> Cow<'a, [i32]> {
        if self.tokens.is_empty() {
            return ids.into();
        }
        let row = |id: &i32| self.tokens.iter().position(|token| token.cast_signed() == *id);
        ids.iter().map(|id| row(id).map_or(*id, |row| (VIRTUAL + row) as i32)).collect()
    }
}

impl Model {
    /// Ids for the embedding lookup.
    pub fn looked_up<'a>(&self, ids: &'a [i32]) -> Cow<'a, [i32]> {
        self.spec.adapter.as_deref().map_or(ids.into(), |adapter| adapter.looked_up(ids))
    }
}
