//! Keys shared by families with experts.

use fathom_tensor::MOST_EXPERTS;
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::error::Result;
use crate::spec::{Moe, Spec};

/// Experts of these sizes in every layer: softmax routing, not normalised, no biases, no shared expert. Loss keys are
/// read but ignored: they affect training only, and Transformers' own models add those losses differently.
pub(super) fn read(
    c: &Config<'_>,
    experts: (&'static str, usize),
    top_k: (&'static str, usize),
    ffn: (&'static str, usize),
) -> Result<Moe> {
    let number = c.size_or(experts.0, Some(experts.1))?;
    let chosen = c.size_or(top_k.0, Some(top_k.1))?;
    if chosen > number {
        return Err(c.refuse(top_k.0, format!("is {chosen}, of {number} experts")));
    }
    if number > MOST_EXPERTS {
        return Err(c.refuse(experts.0, format!("is {number}; at most {MOST_EXPERTS} are supported")));
    }
    let _: bool = c.or("output_router_logits", false)?;
    let _: f64 = c.or("router_aux_loss_coef", 0.0)?;
    let mut moe = Moe::new(number, chosen, c.size_or(ffn.0, Some(ffn.1))?);
    moe.routing.normalise = false;
    Ok(moe)
}

/// Layers without experts, from `mlp_only_layers` and `decoder_sparse_step` (Qwen).
pub(super) fn read_dense_layers(c: &Config<'_>, num_layers: usize) -> Result<Vec<usize>> {
    let only: Vec<usize> = c.or("mlp_only_layers", Vec::new())?;
    let step = c.size_or("decoder_sparse_step", Some(1))?;
    Ok((0..num_layers).filter(|layer| only.contains(layer) || !(layer + 1).is_multiple_of(step)).collect())
}

/// Writes the keys that [`read_dense_layers`] reads.
pub(super) fn write_dense_layers(moe: &Moe, map: &mut Map<String, Value>) {
    map.insert("mlp_only_layers".into(), json!(moe.dense_layers));
    map.insert("decoder_sparse_step".into(), json!(1));
}

/// Writes Qwen's keys of sizes and normalisation.
pub(super) fn write_qwen(s: &Spec, map: &mut Map<String, Value>) {
    let Some(moe) = &s.moe else { return };
    map.insert("num_experts".into(), json!(moe.experts));
    map.insert("num_experts_per_tok".into(), json!(moe.routing.top_k));
    map.insert("moe_intermediate_size".into(), json!(moe.ffn));
    map.insert("norm_topk_prob".into(), json!(moe.routing.normalise));
    write_dense_layers(moe, map);
}
