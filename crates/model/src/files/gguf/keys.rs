//! A model's architecture in the keys of a GGUF file.

use fathom_base::gguf::Value as Key;

use super::config::{ARCHITECTURES, SCALES, llama3_factors, yarn_scale};
use crate::rope::{RopeScaling, RopeSpec};
use crate::spec::Spec;

/// An architecture's name, and its keys.
type KeyReader = (&'static str, Vec<(String, Key)>);

/// llama.cpp's architecture and its keys.
///
/// # Errors
/// If llama.cpp does not support the model.
pub(super) fn keys(spec: &Spec) -> Result<KeyReader, String> {
    let model_type = match spec.family.model_type {
        "mistral" => "llama",
        other => other,
    };
    let found = ARCHITECTURES.iter().find(|(_, dense, sparse)| [*dense, *sparse].contains(&model_type));
    let Some((arch, ..)) = found else {
        return Err(format!("models of the family {} cannot be written as GGUF", spec.family));
    };
    let window = spec.layers.iter().find_map(|layer| layer.window());
    // llama.cpp reads Phi-3's windows only if they are no shorter than the context, and then does not use them.
    let lost = |window: &usize| *arch == "llama" || (*arch == "phi3" && *window < spec.max_positions);
    if let Some(window) = window.filter(lost) {
        return Err(format!(
            "llama.cpp's {arch} attends to all tokens: the window of {window} tokens would be lost"
        ));
    }
    check_ramp(spec)?;
    let mut keys = Vec::new();
    let mut put = |name: &str, key: Key| keys.push((format!("{arch}.{name}"), key));
    let count = |number: usize| Key::Unsigned(number as u64);
    put("context_length", count(spec.max_positions));
    put("embedding_length", count(spec.hidden));
    put("block_count", count(spec.layers.len()));
    put("feed_forward_length", count(spec.ffn));
    put("attention.head_count", count(spec.heads));
    put("attention.head_count_kv", count(spec.kv_heads));
    put("attention.key_length", count(spec.head_dim));
    put("attention.value_length", count(spec.head_dim));
    put("attention.layer_norm_rms_epsilon", Key::Float(spec.norm.eps.into()));
    put("vocab_size", count(spec.vocab));
    if let Some(window) = window {
        put("attention.sliding_window", count(window));
    }
    for (name, cap) in [("attn", spec.attention_softcap), ("final", spec.logit_softcap)] {
        if cap != 0.0 {
            put(&format!("{name}_logit_softcapping"), Key::Float(cap.into()));
        }
    }
    if *arch == "granite" {
        let scales = [spec.embed_scale, spec.residual_scale, spec.attention_scale, 1.0 / spec.logit_scale];
        for ((_, name), scale) in SCALES.iter().zip(scales) {
            put(name, Key::Float(scale.into()));
        }
    }
    if let Some(moe) = &spec.moe {
        put("expert_count", count(moe.experts));
        put("expert_used_count", count(moe.routing.top_k));
        put("expert_feed_forward_length", count(moe.ffn));
        if let Some(shared) = moe.shared {
            put("expert_shared_feed_forward_length", count(shared.ffn));
        }
    }
    if let Some(rope) = spec.ropes.first() {
        put("rope.dimension_count", count(rope.rot_dim));
        put("rope.freq_base", Key::Float(rope.theta));
        rope_keys(rope, &mut put);
    }
    if let Some(local) = spec.ropes.get(1) {
        put("rope.freq_base_swa", Key::Float(local.theta));
    }
    Ok((arch, keys))
}

/// # Errors
/// If the ends of YaRN's ramp differ from those hard-coded in llama.cpp.
fn check_ramp(spec: &Spec) -> Result<(), String> {
    for rope in &spec.ropes {
        let RopeScaling::Yarn { beta_fast, beta_slow, .. } = &rope.scaling else { continue };
        for (key, value, own) in [("beta_fast", beta_fast, 32.0), ("beta_slow", beta_slow, 1.0)] {
            // Zero means unset, as in Transformers.
            if let Some(value) = value.filter(|value| *value != 0.0 && *value != own) {
                return Err(format!(
                    "rope_scaling: {key} is {value}, and llama.cpp computes with {own} whatever a file says"
                ));
            }
        }
    }
    Ok(())
}

fn rope_keys(rope: &RopeSpec, put: &mut impl FnMut(&str, Key)) {
    let scaling = &rope.scaling;
    let count = |number: usize| Key::Unsigned(number as u64);
    match scaling {
        RopeScaling::Linear { factor } => {
            put("rope.scaling.type", Key::Text("linear".into()));
            put("rope.scaling.factor", Key::Float(*factor));
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, .. } => {
            put("rope.scaling.type", Key::Text("yarn".into()));
            put("rope.scaling.factor", Key::Float(*factor));
            if let Some(whole) = attention_factor {
                put("rope.scaling.attn_factor", Key::Float(whole / yarn_scale(*factor)));
            }
            let keys = [("yarn_beta_fast", beta_fast), ("yarn_beta_slow", beta_slow)];
            for (name, value) in keys {
                value.iter().for_each(|value| put(&format!("rope.scaling.{name}"), Key::Float(*value)));
            }
        }
        RopeScaling::Longrope { .. } => {
            put("rope.scaling.attn_factor", Key::Float(rope.frequencies(1).factor.into()));
        }
        _ => {}
    }
    if let Some(original) = scaling.original_positions() {
        put("rope.scaling.original_context_length", count(original));
    }
}

/// Tensors of frequency divisors.
pub(super) fn factors(spec: &Spec) -> Vec<(&'static str, Vec<f32>)> {
    let Some(rope) = spec.ropes.first() else { return Vec::new() };
    let narrow = |list: &[f64]| list.iter().map(|x| *x as f32).collect();
    match &rope.scaling {
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
            let bands = (*low_freq_factor, *high_freq_factor, *original);
            vec![("rope_freqs", llama3_factors((rope.theta, spec.head_dim as u64), *factor, bands))]
        }
        RopeScaling::Longrope { short_factor, long_factor, .. } => {
            vec![("rope_factors_long", narrow(long_factor)), ("rope_factors_short", narrow(short_factor))]
        }
        _ => Vec::new(),
    }
}
