//! GLM-4 of 2024 (`glm`): Llama with fused gate and up, biases on q, k and v, and rotation of neighbouring columns in
//! half of each head.

use serde_json::{Map, Value, json};

use super::common;
use super::common::{Dialect, HeadDim, KvHeads};
use crate::config::Config;
use crate::config_rope::RopeKeys;
use crate::error::Result;
use crate::spec::{Biases, Family, Spec};
use crate::weight::{Names, Up};

/// Keys of both GLMs.
pub(super) const DIALECT: Dialect = Dialect {
    eps: ("rms_norm_eps", 1.5625e-7),
    kv_heads: KvHeads::Fixed(2),
    head_dim: HeadDim::Fixed(128),
    rope: RopeKeys {
        theta: ("rope_theta", 10_000.0),
        partial: Some(("partial_rotary_factor", 0.5)),
        nested: None,
    },
    ..common::LLAMA
};

/// Names of both GLMs' weights, except norms.
pub(super) const NAMES: Names = Names { up: Up::One("mlp.gate_up_proj"), ..Names::LLAMA };

pub(super) static FAMILY: Family = Family {
    model_type: "glm",
    architecture: "GlmForCausalLM",
    read: |c, family| read(c, family, &DIALECT),
    write: |s, map| write(s, &DIALECT, map),
    names: NAMES,
};

/// Reads the parts common to both GLMs. `attention_bias` does not apply to attention's output, which has none.
pub(super) fn read(c: &Config<'_>, family: &'static Family, dialect: &Dialect) -> Result<Spec> {
    let bias = Biases { qkv: c.or("attention_bias", true)?, attn_out: false, mlp: false };
    let mut spec = Spec { bias, ..common::read(c, family, dialect)? };
    spec.ropes[0].interleaved = true;
    Ok(spec)
}

/// Writes the keys that [`read`] reads.
pub(super) fn write(s: &Spec, dialect: &Dialect, map: &mut Map<String, Value>) {
    common::write(s, dialect, map);
    map.insert("attention_bias".into(), json!(s.bias.qkv));
}
