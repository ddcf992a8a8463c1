//! Gemma 3 (text): like Gemma 2 without caps; q and k are normalised; most layers slide and have a separate rotary
//! base. Folders of the multimodal models contain it as a part.

use serde_json::{Map, Value, json};

use super::common::{Dialect, KvHeads};
use super::gemma2::{sandwich, write_sandwich};
use super::wrapper::Wrapper;
use super::{common, gemma};
use crate::config::Config;
use crate::config_rope::{Outside, RopeKeys, RopeSizes, parameters, read_parameters};
use crate::error::Result;
use crate::rope::{RopeScaling, RopeSpec};
use crate::spec::{Family, QkNorm, Spec};
use crate::weight::Names;

const DIALECT: Dialect = Dialect {
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    kv_heads: KvHeads::Fixed(4),
    rope: RopeKeys { theta: ("rope_theta", 1_000_000.0), partial: None, nested: Some("full_attention") },
    ..gemma::DIALECT
};

/// Index of full attention's rotary setting.
const FULL: usize = 0;
/// Index of sliding attention's rotary setting.
const SLIDING: usize = 1;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    read: |c, family| {
        let _: Option<String> = c.nullable("hidden_act", None)?;
        let pattern: usize = c.or("sliding_window_pattern", 6)?;
        // Written by Transformers next to `layer_types`, but not read.
        let _: Option<usize> = c.nullable("_sliding_window_pattern", None)?;
        // In the configuration, but unused by the attention.
        c.only("attn_logit_softcapping", "null")?;
        let mut spec = Spec { qk_norm: QkNorm::PerHead, ..sandwich(c, family, &DIALECT, [None, None])? };
        spec.ropes.push(sliding_rope(c, &spec)?);
        let slides = |layer: usize| pattern == 0 || !(layer + 1).is_multiple_of(pattern);
        let sliding = common::read_layer_types(c, &mut spec, Some(4096), slides)?;
        for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
            layer.set_rope(Some(if slides { SLIDING } else { FULL }));
        }
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        write_sandwich(s, map);
        common::write_layer_types(s, map);
        match (s.ropes.get(FULL), s.ropes.get(SLIDING)) {
            (Some(full), Some(sliding)) if sliding.scaling != RopeScaling::Default => {
                // Only Transformers 5 has keys for this, which are complete.
                map.retain(|key, _| !["rope_theta", "rope_scaling"].contains(&key.as_str()));
                let kinds =
                    json!({ "full_attention": parameters(full), "sliding_attention": parameters(sliding) });
                map.insert("rope_parameters".into(), kinds);
            }
            (_, sliding) => {
                map.insert("rope_local_base_freq".into(), json!(sliding.map(|rope| rope.theta)));
            }
        }
    },
    names: Names::SANDWICH,
};

/// The models of 4B, 12B and 27B. Transformers 4 and 5 name their tensors differently.
pub(super) const WRAPPER: Wrapper = Wrapper {
    model_type: "gemma3",
    architecture: "Gemma3ForConditionalGeneration",
    text: "gemma3_text",
    defaults: &[
        ("vocab_size", 262_208),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_hidden_layers", 26),
        ("num_attention_heads", 8),
        ("max_position_embeddings", 131_072),
    ],
    tied: true,
    outer_keys: &[
        "vision_config",
        "mm_tokens_per_image",
        "boi_token_index",
        "boi_token_id",
        "eoi_token_index",
        "eoi_token_id",
        "image_token_index",
        "image_token_id",
    ],
    prefixes: &[
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
    ],
    others: &[
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ],
};

/// Rotary setting of sliding layers: `rope_parameters.sliding_attention`, or only the base `rope_local_base_freq`.
fn sliding_rope(c: &Config<'_>, spec: &Spec) -> Result<RopeSpec> {
    let sizes = RopeSizes { head_dim: spec.head_dim, max_positions: spec.max_positions, original: None };
    let theta: f64 = c.or("rope_local_base_freq", 10_000.0)?;
    let nested: Option<Map<String, Value>> = c.nullable("rope_parameters", None)?;
    let nested = nested.filter(|map| map.contains_key("full_attention"));
    let other = nested
        .iter()
        .flat_map(Map::keys)
        .find(|kind| *kind != "full_attention" && *kind != "sliding_attention");
    if let Some(other) = other {
        return Err(c.refuse(format!("rope_parameters.{other}"), "is not a kind of layer of this family"));
    }
    let value = nested.and_then(|mut map| map.remove("sliding_attention")).unwrap_or_else(|| json!({}));
    read_parameters(c, "rope_parameters.sliding_attention", &value, &Outside { theta, partial: None, sizes })
}
