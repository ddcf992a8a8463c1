//! LFM2: layers of a short convolution between gates, and some of attention with normalised q and k; each with a SwiGLU.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::common;
use super::common::Dialect;
use crate::config::Config;
use crate::config_rope::RopeKeys;
use crate::error::Result;
use crate::short_conv::ShortConv;
use crate::spec::{Family, LayerSpec, PartKind, QkNorm, Spec};
use crate::weight::{Names, Up};

pub(super) const DIALECT: Dialect = Dialect {
    eps: ("norm_eps", 1e-5),
    kv_heads: common::KvHeads::Fixed(8),
    rope: RopeKeys { theta: ("rope_theta", 1_000_000.0), partial: None, nested: None },
    tied: true,
    ..common::LLAMA
};

/// The width of MLPs may be under an older name alone.
const OWN: Dialect = Dialect { ffn: Some(12_288), ..DIALECT };
const TYPES: &str = "layer_types";
const INDICES: &str = "full_attn_idxs";
const ADJUSTS: &str = "block_auto_adjust_ff_dim";

pub(super) static FAMILY: Family = Family {
    model_type: "lfm2",
    architecture: "Lfm2ForCausalLM",
    read: |c, family| {
        let mut spec = Spec { qk_norm: QkNorm::PerHead, ..common::read(c, family, &OWN)? };
        c.silu("hidden_act")?;
        c.only("block_use_swiglu", "true")?;
        c.only("use_pos_enc", "true")?;
        // Other spellings of keys that are there, and initial values.
        let same = [
            ("block_dim", spec.hidden),
            ("conv_dim", spec.hidden),
            ("conv_dim_out", spec.hidden),
            ("num_heads", spec.heads),
        ];
        for (key, size) in same {
            if let Some(other) = c.nullable::<usize>(key, None)?.filter(|other| *other != size) {
                return Err(c.refuse(key, format!("is {other}, and another key says {size}")));
            }
        }
        for key in
            ["block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init"]
        {
            c.raw(key);
        }
        if c.nullable::<f64>("block_norm_eps", None)?.is_some_and(|eps| eps as f32 != spec.norm.eps) {
            return Err(c.refuse("block_norm_eps", "and `norm_eps` disagree"));
        }
        spec.ffn = ffn(c, spec.ffn)?;
        read_layers(c, &mut spec)?;
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        write_layers(s, map);
        map.insert(ADJUSTS.into(), json!(false));
    },
    names: NAMES,
};

pub(super) const NAMES: Names = Names {
    final_norm: "embedding_norm",
    attn_norm: "operator_norm",
    mlp_norm: "ffn_norm",
    q_norm: "self_attn.q_layernorm",
    k_norm: "self_attn.k_layernorm",
    attn_out: "self_attn.out_proj",
    up: Up::Pair(["feed_forward.w1", "feed_forward.w3"]),
    down: "feed_forward.w2",
    ..Names::LLAMA
};

/// Reads which layers are convolutions, and whether the head is the embedding, under either of its keys.
pub(super) fn read_layers(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    spec.tied = c.or("tie_embedding", spec.tied)?;
    let conv = ShortConv {
        hidden: spec.hidden,
        width: c.count("conv_L_cache", 3, 2..=8)?,
        bias: c.or("conv_bias", false)?,
    };
    let conv = Arc::new(conv);
    for (layer, attends) in spec.layers.iter_mut().zip(attention(c)?) {
        if !attends {
            *layer = LayerSpec::new([PartKind::Own(conv.clone()), PartKind::Mlp]);
        }
    }
    Ok(())
}

/// Writes the keys of layers that [`read_layers`] reads.
pub(super) fn write_layers(s: &Spec, map: &mut Map<String, Value>) {
    let conv =
        s.layers.iter().flat_map(LayerSpec::own).find_map(|own| own.as_any().downcast_ref::<ShortConv>());
    let kind = |layer: &LayerSpec| if layer.reach().is_some() { "full_attention" } else { "conv" };
    let kinds: Vec<&str> = s.layers.iter().map(kind).collect();
    let keys = [
        (TYPES, json!(kinds)),
        ("conv_L_cache", json!(conv.map_or(3, |conv| conv.width))),
        ("conv_bias", json!(conv.is_some_and(|conv| conv.bias))),
    ];
    map.extend(keys.map(|(key, value)| (key.to_string(), value)));
}

/// Columns inside the MLP: two thirds of the configured ones times a factor, rounded up, unless that is switched off.
fn ffn(c: &Config<'_>, size: usize) -> Result<usize> {
    let size = c.size_or("block_ff_dim", Some(size))?;
    let multiple = c.size_or("block_multiple_of", Some(256))?;
    let factor: Option<f64> = c.nullable("block_ffn_dim_multiplier", Some(1.0))?;
    if !c.or(ADJUSTS, true)? {
        return Ok(size);
    }
    let size = (2 * size) / 3;
    Ok(factor
        .map_or(size, |factor| ((factor * size as f64) as usize).div_ceil(multiple).saturating_mul(multiple)))
}

/// For each layer, whether it has attention; by default all have.
fn attention(c: &Config<'_>) -> Result<Vec<bool>> {
    let layers = c.layers("num_hidden_layers")?;
    let indices: Option<Vec<usize>> = c.nullable(INDICES, None)?;
    let Some(kinds): Option<Vec<String>> = c.nullable(TYPES, None)? else {
        let attends = |layer| indices.as_ref().is_none_or(|indices| indices.contains(&layer));
        return Ok((0..layers).map(attends).collect());
    };
    if kinds.len() != layers {
        return Err(c.refuse(TYPES, format!("has {} entries for {layers} layers", kinds.len())));
    }
    let attends = |kind: &String| match kind.as_str() {
        "full_attention" => Ok(true),
        "conv" => Ok(false),
        other => Err(c.refuse(TYPES, format!("holds \"{other}\"; supported: full_attention, conv"))),
    };
    kinds.iter().map(attends).collect()
}
