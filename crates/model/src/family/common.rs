//! Keys shared by the configurations of most families.

use fathom_tensor::{Activation, NormKind};
use serde_json::{Map, Value, json};

use crate::config::{Config, short};
use crate::config_rope::{RopeKeys, RopeSizes, read_rope, write_rope};
use crate::error::Result;
use crate::made::LlamaSizes;
use crate::spec::{Biases, Family, LayerSpec, Mlp, Spec};

/// A family's names of the shared keys, with its defaults.
#[derive(Clone, Copy)]
pub(super) struct Dialect {
    /// Key and default of the activation function.
    pub activation: (&'static str, &'static str),
    /// Key and default of the norms' epsilon.
    pub eps: (&'static str, f64),
    /// Default of `tie_word_embeddings`.
    pub tied: bool,
    /// Default of `num_key_value_heads`; the number of heads if `None`.
    pub kv_heads: KvHeads,
    /// Default of `head_dim`.
    pub head_dim: HeadDim,
    /// Keys of the rotary setting.
    pub rope: RopeKeys,
    /// Key and default of a length before extension outside the rotary map.
    pub original: Option<(&'static str, usize)>,
    /// Whether the MLP is `act(gate) up` rather than plain.
    pub gated: bool,
    /// Default of `intermediate_size`, in families whose layers may all have experts.
    pub ffn: Option<usize>,
    /// The norm, without its epsilon.
    pub norm: NormKind,
}

/// Default of `num_key_value_heads`.
#[derive(Clone, Copy)]
pub(super) enum KvHeads {
    /// Equal to the query heads.
    Heads,
    Fixed(usize),
    /// No such key; equal to the query heads.
    NoKey,
}

/// Default of `head_dim`.
#[derive(Clone, Copy)]
pub(super) enum HeadDim {
    /// Hidden size divided by heads.
    Quotient,
    Fixed(usize),
    /// No such key; hidden size divided by heads.
    NoKey,
}

/// RMSNorm as in Llama: rounds to the storage type before the weight.
pub(super) const RMS: NormKind = NormKind { centred: false, plus_one: false, round_first: true, eps: 0.0 };
/// RMSNorm as in Gemma: times one plus the weight.
pub(super) const RMS_PLUS_ONE: NormKind =
    NormKind { centred: false, plus_one: true, round_first: false, eps: 0.0 };
pub(super) const LAYER: NormKind = NormKind { centred: true, plus_one: false, round_first: false, eps: 0.0 };

/// Llama's keys.
pub(super) const LLAMA: Dialect = Dialect {
    activation: ("hidden_act", "silu"),
    eps: ("rms_norm_eps", 1e-6),
    tied: false,
    kv_heads: KvHeads::Heads,
    head_dim: HeadDim::Quotient,
    rope: RopeKeys { theta: ("rope_theta", 10_000.0), partial: None, nested: None },
    original: None,
    gated: true,
    ffn: None,
    norm: RMS,
};

/// Reads sizes, norm, MLP and one rotary setting for all layers; no biases, windows or factors.
pub(super) fn read(c: &Config<'_>, family: &'static Family, d: &Dialect) -> Result<Spec> {
    let (hidden, heads) = (c.size("hidden_size")?, c.size("num_attention_heads")?);
    let kv_heads = match d.kv_heads {
        KvHeads::Heads => c.size_or("num_key_value_heads", Some(heads))?,
        KvHeads::Fixed(number) => c.size_or("num_key_value_heads", Some(number))?,
        KvHeads::NoKey => heads,
    };
    if heads % kv_heads != 0 {
        let what = format!("is {kv_heads}, which does not divide the {heads} attention heads");
        return Err(c.refuse("num_key_value_heads", what));
    }
    let head_dim = match d.head_dim {
        HeadDim::Quotient => c.nullable("head_dim", None)?,
        HeadDim::Fixed(number) => Some(c.size_or("head_dim", Some(number))?),
        HeadDim::NoKey => None,
    };
    let head_dim: usize = match head_dim {
        Some(size) if (1..=1 << 16).contains(&size) => size,
        Some(size) => return Err(c.refuse("head_dim", format!("is {size}; sizes are 1 to 65536"))),
        None if hidden % heads == 0 => hidden / heads,
        None => {
            let what = format!("is {heads}, which does not divide the hidden size {hidden}");
            return Err(c.refuse("num_attention_heads", what));
        }
    };
    let max_positions = c.size("max_position_embeddings")?;
    let original = d.original.map(|(key, default)| c.size_or(key, Some(default))).transpose()?;
    let rope = read_rope(c, &d.rope, RopeSizes { head_dim, max_positions, original })?;
    let sizes = LlamaSizes {
        hidden,
        layers: c.layers("num_hidden_layers")?,
        heads,
        kv_heads,
        head_dim,
        ffn: c.size_or("intermediate_size", d.ffn)?,
        vocab: c.size("vocab_size")?,
        rope_theta: rope.theta,
        max_positions,
        tied: c.or("tie_word_embeddings", d.tied)?,
    };
    Ok(Spec {
        family,
        norm: NormKind { eps: c.eps(d.eps.0, d.eps.1)?, ..d.norm },
        norm_bias: d.norm.centred,
        mlp: Mlp { activation: c.activation(d.activation.0, d.activation.1)?, gated: d.gated },
        ropes: vec![rope],
        ..Spec::llama(sizes)
    })
}

/// Writes the keys that [`read`] reads.
pub(super) fn write(s: &Spec, d: &Dialect, map: &mut Map<String, Value>) {
    let mut put = |key: &str, value: Value| map.insert(key.into(), value);
    put("vocab_size", json!(s.vocab));
    put("hidden_size", json!(s.hidden));
    put("intermediate_size", json!(s.ffn));
    put("num_hidden_layers", json!(s.layers.len()));
    put("num_attention_heads", json!(s.heads));
    if !matches!(d.kv_heads, KvHeads::NoKey) {
        put("num_key_value_heads", json!(s.kv_heads));
    }
    if !matches!(d.head_dim, HeadDim::NoKey) {
        put("head_dim", json!(s.head_dim));
    }
    put("max_position_embeddings", json!(s.max_positions));
    put(d.eps.0, json!(short(s.norm.eps)));
    put(d.activation.0, json!(activation_name(s.mlp.activation)));
    put("tie_word_embeddings", json!(s.tied));
    if let Some(rope) = s.ropes.first() {
        write_rope(map, &d.rope, rope, s.head_dim);
    }
}

/// Transformers' name of an activation function.
pub(crate) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::GeluErf => "gelu",
        Activation::Relu => "relu",
        Activation::Relu2 => "relu2",
        Activation::Tanh => "tanh",
        Activation::Sigmoid => "sigmoid",
        // gpt-oss names it after the function that it modifies.
        Activation::ClampedSwiglu => "silu",
    }
}

/// `attention_bias` for q, k, v and the output alike, and `mlp_bias` if the family has it.
pub(super) fn read_biases(c: &Config<'_>, mlp: bool) -> Result<Biases> {
    let attention = c.or("attention_bias", false)?;
    let mlp = if mlp { c.or("mlp_bias", false)? } else { false };
    Ok(Biases { qkv: attention, attn_out: attention, mlp })
}

/// Writes the keys that [`read_biases`] reads.
pub(super) fn write_biases(s: &Spec, mlp: bool, map: &mut Map<String, Value>) {
    map.insert("attention_bias".into(), json!(s.bias.qkv));
    if mlp {
        map.insert("mlp_bias".into(), json!(s.bias.mlp));
    }
}

/// Reads one `sliding_window` for all layers.
pub(super) fn read_window(c: &Config<'_>, s: &mut Spec, default: Option<usize>) -> Result<()> {
    let window = window(c, default)?;
    s.layers.iter_mut().for_each(|layer| layer.set_window(window));
    Ok(())
}

fn window(c: &Config<'_>, default: Option<usize>) -> Result<Option<usize>> {
    match c.nullable("sliding_window", default)? {
        Some(0) => Err(c.refuse("sliding_window", "is 0; it counts tokens, null is none")),
        window => Ok(window),
    }
}

/// Writes the key that [`read_window`] reads.
pub(super) fn write_window(s: &Spec, map: &mut Map<String, Value>) {
    map.insert("sliding_window".into(), json!(s.layers.iter().find_map(LayerSpec::window)));
}

/// `layer_types`, if present: true for sliding layers.
pub(super) fn sliding_layers(c: &Config<'_>, num_layers: usize) -> Result<Option<Vec<bool>>> {
    let types: Option<Vec<String>> = c.nullable("layer_types", None)?;
    let Some(types) = types else { return Ok(None) };
    if types.len() != num_layers {
        return Err(c.refuse("layer_types", format!("has {} entries for {num_layers} layers", types.len())));
    }
    let slides = |name: &String| match name.as_str() {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => {
            let what = format!("holds \"{other}\"; supported: full_attention, sliding_attention");
            Err(c.refuse("layer_types", what))
        }
    };
    types.iter().map(slides).collect::<Result<_>>().map(Some)
}

/// Reads `layer_types`, or falls back to `slides(layer)`, and `sliding_window` for the sliding layers.
pub(super) fn read_layer_types(
    c: &Config<'_>,
    s: &mut Spec,
    default: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let window = window(c, default)?;
    let num_layers = s.layers.len();
    let sliding = sliding_layers(c, num_layers)?.unwrap_or_else(|| (0..num_layers).map(slides).collect());
    if window.is_none() && sliding.contains(&true) {
        return Err(c.refuse("sliding_window", "is missing, but some layers are sliding_attention"));
    }
    for (layer, slides) in s.layers.iter_mut().zip(&sliding) {
        layer.set_window(window.filter(|_| *slides));
    }
    Ok(sliding)
}

/// Writes the keys that [`read_layer_types`] reads. A window that no layer uses is omitted: some of Transformers'
/// models require one anyway, and have a default.
pub(super) fn write_layer_types(s: &Spec, map: &mut Map<String, Value>) {
    if s.layers.iter().any(|layer| layer.window().is_some()) {
        write_window(s, map);
    }
    let name =
        |layer: &LayerSpec| if layer.window().is_some() { "sliding_attention" } else { "full_attention" };
    map.insert("layer_types".into(), s.layers.iter().map(name).collect());
}

/// `query_pre_attn_scalar^-0.5`.
pub(super) fn read_query_scale(c: &Config<'_>, default: f64) -> Result<f32> {
    let scalar: f64 = c.or("query_pre_attn_scalar", default)?;
    if scalar > 0.0 && scalar.is_finite() {
        return Ok(scalar.powf(-0.5) as f32);
    }
    Err(c.refuse("query_pre_attn_scalar", format!("is {scalar}; a positive number is needed")))
}

/// Writes the key that [`read_query_scale`] reads, as an integer if that gives the same scale.
pub(super) fn write_query_scale(s: &Spec, map: &mut Map<String, Value>) {
    let scalar = f64::from(s.attention_scale).powi(-2);
    let whole = scalar.round();
    let value =
        if whole.powf(-0.5) as f32 == s.attention_scale { json!(whole as u64) } else { json!(scalar) };
    map.insert("query_pre_attn_scalar".into(), value);
}

/// A soft cap; `null` is none.
pub(super) fn read_softcap(c: &Config<'_>, key: &'static str, default: Option<f64>) -> Result<f32> {
    match c.nullable(key, default)? {
        None => Ok(0.0),
        Some(cap) if cap > 0.0 && cap.is_finite() => Ok(cap as f32),
        Some(cap) => Err(c.refuse(key, format!("is {cap}; a positive number or null is needed"))),
    }
}

/// The value that [`read_softcap`] reads.
pub(super) fn softcap_value(cap: f32) -> Value {
    if cap == 0.0 { Value::Null } else { json!(short(cap)) }
}
