//! `adapter_config.json`, as PEFT reads it.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::experts::STACKED;
use super::names::NETWORKS;
use super::saved::AlsoTrained;
use super::targets::ends;
use crate::spec::{Adapter, AdapterMethod, EncoderHead, PromptEncoder, Size, Spec};

/// PEFT version with this layout.
const VERSION: &str = "0.21.2";

/// Builds `adapter_config.json`: the keys that PEFT requires, and its defaults spelled out.
pub(super) fn config(
    spec: &Spec,
    adapter: &Adapter,
    (base, trained): (&str, &AlsoTrained),
) -> Map<String, Value> {
    if adapter.virtual_tokens() > 0 {
        return leading_config(spec, adapter, base);
    }
    let mut all = spec.adaptable();
    // Transformers' encoders without a head may have a pooler, which is not part of the model here.
    all.extend(spec.is_bare().then(|| "pooler.dense".to_string()));
    let named = |modules: &BTreeSet<String>| {
        let ends = ends(&all, modules);
        ends.iter().map(|name| spec.module_name(name).to_string()).collect::<Vec<String>>()
    };
    let saved: BTreeSet<&str> = trained.modules.iter().map(|name| spec.module_name(name)).collect();
    let stacked = spec.stacked(adapter);
    let modules: BTreeSet<String> =
        adapter.modules.keys().filter(|name| !stacked.contains(*name)).cloned().collect();
    let common = json!({
        "base_model_name_or_path": base,
        "fan_in_fan_out": spec.family.names.transposed,
        "inference_mode": true,
        "modules_to_save": if saved.is_empty() { Value::Null } else { json!(saved) },
        "peft_version": VERSION,
        "target_modules": named(&modules),
        "task_type": task_type(spec),
    });
    let own = match adapter.method {
        AdapterMethod::Lora { rank_stabilised, lengths, singular } => {
            let (size, ranks, alphas) = patterns(spec, adapter);
            let start = if singular { json!("pissa") } else { json!(true) };
            json!({
                "peft_type": "LORA", "bias": trained.biases, "ensure_weight_tying": trained.tied, "r": size.rank, "lora_alpha": number(size.alpha),
                "lora_dropout": adapter.dropout,
                "use_rslora": rank_stabilised, "use_dora": lengths, "init_lora_weights": start,
                "rank_pattern": ranks, "alpha_pattern": alphas, "lora_bias": adapter.biases,
                "target_parameters": parameters(&stacked, spec),
                "trainable_token_indices": if adapter.tokens.is_empty() { Value::Null } else { json!(adapter.tokens) },
            })
        }
        AdapterMethod::Networks(width) => {
            json!({ "peft_type": NETWORKS, "r": width, "target_modules": null })
        }
        AdapterMethod::Factors => {
            json!({
                "peft_type": "IA3", "init_ia3_weights": true,
                "feedforward_modules": named(&adapter.inputs),
            })
        }
        AdapterMethod::Prompt { .. } | AdapterMethod::Prefix { .. } => Value::Null,
    };
    joined([common, own])
}

/// PEFT's task of a model; `None` for a masked-language head, for which it has none.
pub(super) fn task_type(spec: &Spec) -> Option<&'static str> {
    match spec.encoder.as_ref().map(|parts| parts.head) {
        Some(EncoderHead::None) => Some("FEATURE_EXTRACTION"),
        Some(EncoderHead::Masked) => None,
        Some(EncoderHead::Text(_)) => Some("SEQ_CLS"),
        Some(EncoderHead::Tokens(_)) => Some("TOKEN_CLS"),
        None if spec.source > 0 => Some("SEQ_2_SEQ_LM"),
        None if spec.scores > 0 => Some("SEQ_CLS"),
        None => Some("CAUSAL_LM"),
    }
}

/// Tensors of stacked experts for `target_parameters`: common endings if all layers have terms, else full names.
fn parameters(stacked: &BTreeSet<String>, spec: &Spec) -> Value {
    if stacked.is_empty() {
        return Value::Null;
    }
    let layers = (0..spec.layers.len()).filter(|layer| spec.experts_of(*layer).is_some()).count();
    let ends: Vec<&str> =
        STACKED.into_iter().filter(|end| stacked.iter().any(|name| name.ends_with(end))).collect();
    let all = ends.iter().all(|end| stacked.iter().filter(|name| name.ends_with(end)).count() == layers);
    if all { json!(ends) } else { json!(stacked) }
}

fn joined(parts: [Value; 2]) -> Map<String, Value> {
    let mut map = Map::new();
    for part in parts {
        if let Value::Object(part) = part {
            map.extend(part);
        }
    }
    map
}

/// The same for virtual tokens; PEFT needs their width.
fn leading_config(spec: &Spec, adapter: &Adapter, base: &str) -> Map<String, Value> {
    let prefix = matches!(adapter.method, AdapterMethod::Prefix { .. });
    let (heads, width) = if prefix { (spec.kv_heads, spec.kv_cols()) } else { (spec.heads, spec.hidden) };
    let common = json!({
        "base_model_name_or_path": base, "inference_mode": true, "modules_to_save": null, "peft_version": VERSION,
        "num_attention_heads": heads, "num_layers": spec.layers.len(), "num_transformer_submodules": 1,
        "num_virtual_tokens": adapter.virtual_tokens(), "task_type": "CAUSAL_LM", "token_dim": width,
    });
    let own = match adapter.method {
        AdapterMethod::Prefix { encoder, .. } => json!({
            "peft_type": "PREFIX_TUNING", "prefix_projection": encoder.is_some(), "encoder_hidden_size": encoder,
        }),
        AdapterMethod::Prompt { encoder: Some(PromptEncoder { hidden, lstm }), .. } => json!({
            "peft_type": "P_TUNING", "encoder_hidden_size": hidden,
            "encoder_reparameterization_type": if lstm { "LSTM" } else { "MLP" },
            "encoder_num_layers": 2, "encoder_dropout": 0.0,
        }),
        _ => json!({ "peft_type": "PROMPT_TUNING", "prompt_tuning_init": "RANDOM" }),
    };
    joined([common, own])
}

/// The most common size, with exceptions as patterns of whole names.
fn patterns(spec: &Spec, adapter: &Adapter) -> (Size, Map<String, Value>, Map<String, Value>) {
    let sizes: Vec<Size> = adapter.modules.values().copied().collect();
    let times = |size: &Size| sizes.iter().filter(|other| *other == size).count();
    let most = sizes.iter().max_by_key(|size| times(size)).copied().unwrap_or(Size { rank: 1, alpha: 1.0 });
    let (mut ranks, mut alphas) = (Map::new(), Map::new());
    for (name, size) in &adapter.modules {
        let pattern = || format!("^{}", regex::escape(spec.module_name(name)));
        if size.rank != most.rank {
            ranks.insert(pattern(), json!(size.rank));
        }
        if size.alpha != most.alpha {
            alphas.insert(pattern(), number(size.alpha));
        }
    }
    (most, ranks, alphas)
}

/// Writes integral values as JSON integers.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}
