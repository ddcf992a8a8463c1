//! Phi-3 and Phi-4: q, k, v and gate, up are stored fused; LongRoPE; rotation may cover part of each head.

use serde_json::{Value, json};

use super::common;
use super::common::Dialect;
use crate::config_rope::{RopeKeys, written};
use crate::rope::RopeScaling;
use crate::spec::{Family, Spec};
use crate::weight::{Names, Qkv, Up};

const DIALECT: Dialect = Dialect {
    eps: ("rms_norm_eps", 1e-5),
    rope: RopeKeys {
        theta: ("rope_theta", 10_000.0),
        partial: Some(("partial_rotary_factor", 1.0)),
        nested: None,
    },
    original: Some(("original_max_position_embeddings", 4096)),
    ..common::LLAMA
};

/// Keys of published files, with the only supported values.
const ONLY: [(&str, &str); 5] = [
    ("attention_bias", "false"),
    ("full_attn_mod", "1"),
    ("interpolate_factor", "1"),
    ("lm_head_bias", "false"),
    ("mlp_bias", "false"),
];

pub(super) static FAMILY: Family = Family {
    model_type: "phi3",
    architecture: "Phi3ForCausalLM",
    read: |c, family| {
        ONLY.iter().try_for_each(|(key, wanted)| c.only(key, wanted))?;
        let mut spec = common::read(c, family, &DIALECT)?;
        let scaling = &spec.ropes[0].scaling;
        if !matches!(scaling, RopeScaling::Default | RopeScaling::Longrope { .. }) {
            let what = format!("is {}; Phi-3 knows \"longrope\" only", written(scaling));
            return Err(c.refuse("rope_scaling", what));
        }
        common::read_window(c, &mut spec, None)?;
        Ok(Spec { rereads: true, ..spec })
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_window(s, map);
        let Some(scaling) = s.ropes.first().map(|rope| &rope.scaling) else { return };
        let original = scaling.original_positions().unwrap_or(s.max_positions);
        map.insert("original_max_position_embeddings".into(), json!(original));
        // Transformers 4 accepts exactly type, short_factor and long_factor here.
        if let Some(written) = map.get_mut("rope_scaling").and_then(Value::as_object_mut) {
            written.remove("original_max_position_embeddings");
            if let Some(kind) = written.remove("rope_type") {
                written.insert("type".into(), kind);
            }
        }
    },
    names: Names { qkv: Qkv::Fused("self_attn.qkv_proj"), up: Up::One("mlp.gate_up_proj"), ..Names::LLAMA },
};
