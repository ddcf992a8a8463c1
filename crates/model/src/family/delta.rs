//! Keys of gated DeltaNet's mixer, and of the layers that have it, in the configurations of Qwen's families.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::common::{Dialect, HeadDim, KvHeads};
use super::{common, moe};
use crate::config::Config;
use crate::config_rope::RopeKeys;
use crate::error::Result;
use crate::gated_delta::{DeltaNames, GatedDelta};
use crate::spec::{Family, LayerSpec, PartKind, QkNorm, SharedExperts, Spec};
use crate::weight::{MoeNames, Names};

/// Keys and defaults that Qwen3-Next and Qwen3.5 share.
pub(super) const DIALECT: Dialect = Dialect {
    kv_heads: KvHeads::Fixed(2),
    head_dim: HeadDim::Fixed(256),
    rope: RopeKeys {
        theta: ("rope_theta", 10_000.0),
        partial: Some(("partial_rotary_factor", 0.25)),
        nested: None,
    },
    norm: common::RMS_PLUS_ONE,
    ..common::LLAMA
};

/// Their names of weights. Folders may have layers that predict further tokens, which are not read.
pub(super) const NAMES: Names =
    Names { moe: Some(MoeNames::QWEN), ignored_starts: &["mtp."], ..Names::LLAMA };

const TYPES: &str = "layer_types";
const FFN: &str = "shared_expert_intermediate_size";
/// Most columns of all heads.
const MOST_COLUMNS: usize = 1 << 19;

/// Reads a model of mixers and of attention with gates.
pub(super) fn read(
    c: &Config<'_>,
    family: &'static Family,
    dialect: &Dialect,
    names: DeltaNames,
) -> Result<Spec> {
    let bias = common::read_biases(c, false)?;
    let mut spec =
        Spec { bias, qk_norm: QkNorm::PerHead, attention_gate: true, ..common::read(c, family, dialect)? };
    let sizes = [16, 32, 128, 128];
    let mixer = Arc::new(read_mixer(c, names, sizes, spec.norm.eps)?);
    for (layer, attends) in spec.layers.iter_mut().zip(attention(c)?) {
        if !attends {
            *layer = LayerSpec::new([PartKind::Own(mixer.clone()), PartKind::Mlp]);
        }
    }
    Ok(spec)
}

/// Reads the mixer; `sizes` are defaults of key heads, value heads, and the columns of a key and of a value.
pub(super) fn read_mixer(
    c: &Config<'_>,
    names: DeltaNames,
    sizes: [usize; 4],
    eps: f32,
) -> Result<GatedDelta> {
    c.silu("hidden_act")?;
    let key_heads = c.size_or("linear_num_key_heads", Some(sizes[0]))?;
    let value_heads = c.size_or("linear_num_value_heads", Some(sizes[1]))?;
    if !value_heads.is_multiple_of(key_heads) {
        let what = format!("is {key_heads}, which does not divide the {value_heads} value heads");
        return Err(c.refuse("linear_num_key_heads", what));
    }
    let key = c.count("linear_key_head_dim", sizes[2], 1..=1024)?;
    let value = c.count("linear_value_head_dim", sizes[3], 1..=1024)?;
    if value_heads.saturating_mul(key.max(value)) > MOST_COLUMNS {
        let what = format!("is {value_heads}; all heads may have {MOST_COLUMNS} columns together");
        return Err(c.refuse("linear_num_value_heads", what));
    }
    let width = c.count("linear_conv_kernel_dim", 4, 2..=8)?;
    Ok(GatedDelta { names, key_heads, value_heads, key, value, width, beta: 1.0, eps })
}

/// The mixer of a model's layers.
pub(super) fn mixer(s: &Spec) -> Option<&GatedDelta> {
    s.layers.iter().flat_map(LayerSpec::own).find_map(|own| own.as_any().downcast_ref())
}

/// Writes the keys that [`read`] reads.
pub(super) fn write(s: &Spec, dialect: &Dialect, map: &mut Map<String, Value>) {
    common::write(s, dialect, map);
    common::write_biases(s, false, map);
    let kind =
        |layer: &LayerSpec| if layer.reach().is_some() { "full_attention" } else { "linear_attention" };
    let kinds: Vec<&str> = s.layers.iter().map(kind).collect();
    map.insert(TYPES.into(), json!(kinds));
    let Some(mixer) = mixer(s) else { return };
    let keys = [
        ("linear_num_key_heads", mixer.key_heads),
        ("linear_num_value_heads", mixer.value_heads),
        ("linear_key_head_dim", mixer.key),
        ("linear_value_head_dim", mixer.value),
        ("linear_conv_kernel_dim", mixer.width),
    ];
    map.extend(keys.map(|(key, size)| (key.to_string(), json!(size))));
}

/// Reads experts with a gated shared one: their number, those of a token, and the columns of all by default.
pub(super) fn read_experts(c: &Config<'_>, spec: &mut Spec, [number, chosen]: [usize; 2]) -> Result<()> {
    let sizes = [("num_experts", number), ("num_experts_per_tok", chosen), ("moe_intermediate_size", 512)];
    let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
    experts.routing.normalise = c.or("norm_topk_prob", true)?;
    experts.dense_layers = moe::read_dense_layers(c, spec.layers.len())?;
    experts.shared = Some(SharedExperts { ffn: c.size_or(FFN, Some(512))?, gated: true });
    spec.moe = Some(experts);
    Ok(())
}

/// Writes the keys that [`read_experts`] reads.
pub(super) fn write_experts(s: &Spec, map: &mut Map<String, Value>) {
    moe::write_qwen(s, map);
    let shared = s.moe.as_ref().and_then(|moe| moe.shared).map_or(0, |shared| shared.ffn);
    map.insert(FFN.into(), json!(shared));
}

/// For each layer, whether it has attention; by default each fourth has.
pub(super) fn attention(c: &Config<'_>) -> Result<Vec<bool>> {
    let layers = c.layers("num_hidden_layers")?;
    let interval = c.size_or("full_attention_interval", Some(4))?;
    let Some(kinds): Option<Vec<String>> = c.nullable(TYPES, None)? else {
        return Ok((1..=layers).map(|layer| layer.is_multiple_of(interval)).collect());
    };
    if kinds.len() != layers {
        return Err(c.refuse(TYPES, format!("has {} entries for {layers} layers", kinds.len())));
    }
    let attends = |kind: &String| match kind.as_str() {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        other => {
            Err(c.refuse(TYPES, format!("holds \"{other}\"; supported: full_attention, linear_attention")))
        }
    };
    kinds.iter().map(attends).collect()
}
