//! Converts a GGUF file's architecture to the `config.json` that the family reads.

use std::f64::consts::TAU;

use fathom_base::gguf::{Fault, Gguf, Result};
use serde_json::{Map, Value, json};

/// llama.cpp's architectures with Hugging Face's `model_type`, dense and with experts.
pub(super) const ARCHITECTURES: [(&str, &str, &str); 10] = [
    ("llama", "llama", "mixtral"),
    ("granite", "granite", ""),
    ("qwen2", "qwen2", ""),
    ("qwen2moe", "", "qwen2_moe"),
    ("qwen3", "qwen3", ""),
    ("qwen3moe", "", "qwen3_moe"),
    ("gemma", "gemma", ""),
    ("gemma2", "gemma2", ""),
    ("gemma3", "gemma3_text", ""),
    ("phi3", "phi3", ""),
];

/// Granite's factors: keys in its configuration and in a GGUF file. Logits are divided by theirs.
pub(super) const SCALES: [(&str, &str); 4] = [
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("attention_multiplier", "attention.scale"),
    ("logits_scaling", "logit_scale"),
];

/// Llama 3's frequency scaling: low and high factor, and original length, which a file's factors do not determine.
const LLAMA3: (f64, f64, usize) = (1.0, 4.0, 8192);

/// Reads a tensor of frequency factors.
pub(super) type Factors<'a> = &'a dyn Fn(&str) -> Option<Vec<f32>>;

/// Builds a file's configuration.
///
/// # Errors
/// A missing key or unsupported architecture.
pub(super) fn config(gguf: &Gguf, factors: Factors<'_>) -> Result<Map<String, Value>> {
    let arch = gguf.text("general.architecture")?;
    let Some(arch) = arch else { return fault("general.architecture", "is missing") };
    let c = Keys { gguf, arch };
    let experts = c.count("expert_count")?.unwrap_or(0);
    let known = ARCHITECTURES.iter().find(|(name, ..)| *name == arch);
    let model_type = known.map_or("", |(_, dense, sparse)| if experts > 0 { sparse } else { dense });
    if model_type.is_empty() {
        let names = ARCHITECTURES.map(|(name, ..)| name).join(", ");
        return fault(
            "general.architecture",
            format!("is {arch} with {experts} experts; supported: {names}"),
        );
    }
    let mut map = sizes(&c)?;
    map.insert("model_type".into(), json!(model_type));
    let mut put = |key: &str, value: Value| map.insert(key.into(), value);
    let gemma = arch.starts_with("gemma");
    put("hidden_act", json!(if gemma { "gelu_pytorch_tanh" } else { "silu" }));
    let there = |name: &str| gguf.tensors.contains_key(name);
    if matches!(arch, "llama" | "qwen3" | "granite") && experts == 0 {
        put("attention_bias", json!(there("blk.0.attn_q.bias")));
    }
    if matches!(arch, "llama" | "granite") && experts == 0 {
        put("mlp_bias", json!(there("blk.0.ffn_up.bias")));
    }
    if gemma {
        put("hidden_activation", json!("gelu_pytorch_tanh"));
    }
    let window = c.count("attention.sliding_window")?.filter(|window| *window > 0);
    match arch {
        "gemma2" | "gemma3" => {
            let window = window.map_or_else(|| c.missing("attention.sliding_window"), Ok)?;
            put("sliding_window", json!(window));
            put(
                "attn_logit_softcapping",
                c.float("attn_logit_softcapping")?.map_or(Value::Null, Value::from),
            );
            put(
                "final_logit_softcapping",
                c.float("final_logit_softcapping")?.map_or(Value::Null, Value::from),
            );
            put("query_pre_attn_scalar", query_scale(&c)?);
        }
        "phi3" => {
            put("sliding_window", window.map_or(Value::Null, Value::from));
        }
        "granite" => {
            for (theirs, ours) in SCALES {
                put(theirs, json!(c.float(ours)?.unwrap_or(1.0)));
            }
        }
        // llama.cpp has no window here.
        "llama" if experts > 0 => {
            put("sliding_window", Value::Null);
        }
        _ => {}
    }
    if experts > 0 {
        put_experts(&c, experts, &mut map)?;
    }
    put_rope(&c, &mut map, factors)?;
    Ok(map)
}

/// The keys of one architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
}

fn fault<T>(key: &str, what: impl Into<String>) -> Result<T> {
    Err(Fault { key: key.to_string(), what: what.into() })
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn count(&self, name: &str) -> Result<Option<u64>> {
        self.gguf.count(&self.key(name))
    }

    fn float(&self, name: &str) -> Result<Option<f64>> {
        Ok(self.gguf.float(&self.key(name))?.map(short))
    }

    fn missing<T>(&self, name: &str) -> Result<T> {
        fault(&self.key(name), "is missing")
    }

    fn size(&self, name: &str) -> Result<u64> {
        self.count(name)?.map_or_else(|| self.missing(name), Ok)
    }

    fn heads(&self) -> Result<u64> {
        match self.size("attention.head_count")? {
            0 => fault(&self.key("attention.head_count"), "is 0"),
            heads => Ok(heads),
        }
    }

    fn head_dim(&self) -> Result<u64> {
        match self.count("attention.key_length")? {
            Some(length) => Ok(length),
            None => Ok(self.size("embedding_length")? / self.heads()?),
        }
    }
}

/// The shortest decimal that rounds to this f32, as it was originally written.
pub(super) fn short(number: f64) -> f64 {
    (number as f32).to_string().parse().unwrap_or(number)
}

fn sizes(c: &Keys<'_>) -> Result<Map<String, Value>> {
    let heads = c.heads()?;
    let head_dim = c.head_dim()?;
    if c.count("attention.value_length")?.is_some_and(|length| length != head_dim) {
        return fault(
            &c.key("attention.value_length"),
            "and attention.key_length differ, which is not supported",
        );
    }
    let Some(embedding) = c.gguf.tensors.get("token_embd.weight") else {
        return fault("token_embd.weight", "is missing");
    };
    let experts = c.count("expert_count")?.unwrap_or(0) > 0;
    let ffn = match c.count("feed_forward_length")? {
        Some(ffn) => ffn,
        None if experts => c.size("expert_feed_forward_length")?,
        None => return c.missing("feed_forward_length"),
    };
    let eps = c.float("attention.layer_norm_rms_epsilon")?;
    let eps = eps.map_or_else(|| c.missing("attention.layer_norm_rms_epsilon"), Ok)?;
    let tied = !c.gguf.tensors.contains_key("output.weight");
    let entries = [
        ("hidden_size", json!(c.size("embedding_length")?)),
        ("num_hidden_layers", json!(c.size("block_count")?)),
        ("num_attention_heads", json!(heads)),
        ("num_key_value_heads", json!(c.count("attention.head_count_kv")?.unwrap_or(heads))),
        ("head_dim", json!(head_dim)),
        ("intermediate_size", json!(ffn)),
        ("max_position_embeddings", json!(c.size("context_length")?)),
        ("rms_norm_eps", json!(eps)),
        ("vocab_size", json!(embedding.shape.first())),
        ("tie_word_embeddings", json!(tied)),
    ];
    Ok(entries.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
}

/// Scale of queries, which llama.cpp derives from the model's size: hidden size / heads for the 27B models, otherwise
/// the head size.
fn query_scale(c: &Keys<'_>) -> Result<Value> {
    let layers = c.size("block_count")?;
    let large = matches!((c.arch, layers), ("gemma2", 46) | ("gemma3", 62));
    Ok(json!(if large { c.size("embedding_length")? / c.heads()? } else { c.head_dim()? }))
}

fn put_experts(c: &Keys<'_>, experts: u64, map: &mut Map<String, Value>) -> Result<()> {
    let mut put = |key: &str, value: Value| map.insert(key.into(), value);
    put("num_experts_per_tok", json!(c.size("expert_used_count")?));
    if c.arch == "llama" {
        put("num_local_experts", json!(experts));
        return Ok(());
    }
    put("num_experts", json!(experts));
    put("moe_intermediate_size", json!(c.size("expert_feed_forward_length")?));
    // Hard-coded in llama.cpp.
    put("norm_topk_prob", json!(c.arch == "qwen3moe"));
    if c.arch == "qwen2moe" {
        put("shared_expert_intermediate_size", json!(c.size("expert_shared_feed_forward_length")?));
    }
    Ok(())
}

fn put_rope(c: &Keys<'_>, map: &mut Map<String, Value>, factors: Factors<'_>) -> Result<()> {
    let head_dim = c.head_dim()?;
    let rotated = c.count("rope.dimension_count")?.unwrap_or(head_dim);
    let theta = c.float("rope.freq_base")?;
    let theta = theta.unwrap_or(if c.arch == "gemma3" { 1e6 } else { 1e4 });
    map.insert("rope_theta".into(), json!(theta));
    if c.arch == "gemma3" {
        let local = c.float("rope.freq_base_swa")?.unwrap_or(1e4);
        map.insert("rope_local_base_freq".into(), json!(local));
    }
    if c.arch == "phi3" {
        map.insert("partial_rotary_factor".into(), json!(rotated as f64 / head_dim.max(1) as f64));
    } else if rotated != head_dim {
        let what = format!("is {rotated}, and heads have {head_dim} columns; this architecture rotates all");
        return fault(&c.key("rope.dimension_count"), what);
    }
    let original = c.count("rope.scaling.original_context_length")?;
    let longest = map["max_position_embeddings"].clone();
    if let (Some(short), Some(long)) =
        (factors("rope_factors_short.weight"), factors("rope_factors_long.weight"))
    {
        map.insert("original_max_position_embeddings".into(), original.map_or(longest, Value::from));
        let wide = |list: Vec<f32>| list.into_iter().map(short_of).collect::<Vec<f64>>();
        let mut scaling =
            json!({ "type": "longrope", "short_factor": wide(short), "long_factor": wide(long) });
        if let Some(factor) = c.float("rope.scaling.attn_factor")?.filter(|factor| !is_usual(map, *factor)) {
            scaling["attention_factor"] = json!(factor);
        }
        map.insert("rope_scaling".into(), scaling);
        return Ok(());
    }
    if c.arch == "phi3" {
        map.insert("original_max_position_embeddings".into(), original.map_or(longest, Value::from));
    }
    if let Some(factors) = factors("rope_freqs.weight") {
        let scaling = llama3(&factors, theta, head_dim, original);
        let what = "are factors of frequencies that are not those of Llama 3";
        map.insert("rope_scaling".into(), scaling.map_or_else(|| fault("rope_freqs.weight", what), Ok)?);
        return Ok(());
    }
    let factor = c.float("rope.scaling.factor")?.or(c.float("rope.scale_linear")?);
    let scaling = match (c.gguf.text(&c.key("rope.scaling.type"))?, factor) {
        (Some("none"), _) | (None, None) => Value::Null,
        (Some("linear") | None, factor) => json!({ "rope_type": "linear", "factor": factor.unwrap_or(1.0) }),
        (Some("yarn"), factor) => yarn(c, factor, original)?,
        (Some(other), _) => {
            return fault(&c.key("rope.scaling.type"), format!("is {other}, which is not supported"));
        }
    };
    if !scaling.is_null() {
        map.insert("rope_scaling".into(), scaling);
    }
    Ok(())
}

/// Returns whether LongRoPE's attention factor is the default for the two lengths, which configurations omit.
fn is_usual(map: &Map<String, Value>, factor: f64) -> bool {
    let [longest, first] = ["max_position_embeddings", "original_max_position_embeddings"]
        .map(|key| map[key].as_f64().unwrap_or(1.0));
    let usual = if longest > first { (1.0 + (longest / first).ln() / first.ln()).sqrt() } else { 1.0 };
    (factor - usual).abs() < 1e-3
}

fn short_of(number: f32) -> f64 {
    short(f64::from(number))
}

/// llama.cpp's multiplier of a file's YaRN attention factor; the default factor.
pub(super) fn yarn_scale(factor: f64) -> f64 {
    0.1 * factor.ln() + 1.0
}

/// A configuration's attention factor from a file's.
pub(super) fn yarn_attention(in_file: f64, factor: f64) -> f64 {
    short(short(in_file) * yarn_scale(factor))
}

fn yarn(c: &Keys<'_>, factor: Option<f64>, original: Option<u64>) -> Result<Value> {
    let mut map = Map::new();
    let factor = factor.map_or_else(|| c.missing("rope.scaling.factor"), Ok)?;
    map.insert("rope_type".into(), json!("yarn"));
    map.insert("factor".into(), json!(factor));
    if let Some(in_file) = c.float("rope.scaling.attn_factor")? {
        map.insert("attention_factor".into(), json!(yarn_attention(in_file, factor)));
    }
    let keys = [("beta_fast", "rope.scaling.yarn_beta_fast"), ("beta_slow", "rope.scaling.yarn_beta_slow")];
    map.extend(original.map(|original| ("original_max_position_embeddings".to_string(), json!(original))));
    for (theirs, ours) in keys {
        map.extend(c.float(ours)?.map(|value| (theirs.to_string(), json!(value))));
    }
    Ok(Value::Object(map))
}

/// Divisors of frequencies under Llama 3's scaling.
pub(super) fn llama3_factors(
    (theta, head_dim): (f64, u64),
    factor: f64,
    (low, high, original): (f64, f64, usize),
) -> Vec<f32> {
    let original = original as f64;
    (0..head_dim / 2)
        .map(|pair| {
            let length = TAU * theta.powf(2.0 * pair as f64 / head_dim as f64);
            if length < original / high {
                1.0
            } else if length > original / low {
                factor as f32
            } else {
                let smooth = (original / length - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        })
        .collect()
}

/// Recovers the scaling that gives these factors.
fn llama3(factors: &[f32], theta: f64, head_dim: u64, original: Option<u64>) -> Option<Value> {
    let factor = factors.iter().fold(0.0f32, |most, x| most.max(*x));
    let (low, high, first) = LLAMA3;
    let close = |wanted: Vec<f32>| {
        wanted.len() == factors.len()
            && wanted.iter().zip(factors).all(|(x, y)| (x - y).abs() <= 1e-3 * x.abs())
    };
    // Few files have the original length; powers of two are tried.
    let named = original.map(|original| original as usize);
    let lengths = named.into_iter().chain([first]).chain((6..20).map(|bits| 1 << bits));
    let factor = short_of(factor);
    lengths
        .into_iter()
        .find(|length| close(llama3_factors((theta, head_dim), factor, (low, high, *length))))
        .map(|length| {
            json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": length,
            })
        })
}
