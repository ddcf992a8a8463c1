//! StarCoder 2: LayerNorm, biases everywhere, tanh GELU without a gate, one sliding window.

use serde_json::json;

use super::common;
use super::common::{Dialect, KvHeads};
use crate::spec::{Biases, Family, Spec};
use crate::weight::{Names, Up};

const DIALECT: Dialect = Dialect {
    activation: ("hidden_act", "gelu_pytorch_tanh"),
    eps: ("norm_epsilon", 1e-5),
    tied: true,
    kv_heads: KvHeads::Fixed(2),
    gated: false,
    norm: common::LAYER,
    ..common::LLAMA
};

/// Keys from the training code in published files, with the only supported values.
const ONLY: [(&str, &str); 5] = [
    ("activation_function", "\"gelu_pytorch_tanh\""),
    ("mlp_type", "\"default\""),
    ("norm_type", "\"layer_norm\""),
    ("scale_attn_weights", "true"),
    ("scale_attention_softmax_in_fp32", "true"),
];

pub(super) static FAMILY: Family = Family {
    model_type: "starcoder2",
    architecture: "Starcoder2ForCausalLM",
    read: |c, family| {
        ONLY.iter().try_for_each(|(key, wanted)| c.only(key, wanted))?;
        c.only("attention_softmax_in_fp32", "true")?;
        let _: Option<f64> = c.nullable("layer_norm_epsilon", None)?;
        let all: bool = c.or("use_bias", true)?;
        let bias = Biases { qkv: all, attn_out: all, mlp: all };
        let mut spec = Spec { bias, ..common::read(c, family, &DIALECT)? };
        common::read_window(c, &mut spec, None)?;
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_window(s, map);
        map.insert("use_bias".into(), json!(s.bias.qkv));
    },
    names: Names { up: Up::One("mlp.c_fc"), down: "mlp.c_proj", ..Names::LLAMA },
};
