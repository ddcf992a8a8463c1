//! GPT-NeoX and Pythia: attention and MLP read the same input (or not), q, k and v interleaved per head, a quarter of
//! each head rotates.

use serde_json::json;

use super::common;
use super::common::{Dialect, HeadDim, KvHeads};
use crate::config_rope::RopeKeys;
use crate::spec::{Biases, Family, Residual, Spec};
use crate::weight::{Names, Qkv, Up};

const DIALECT: Dialect = Dialect {
    activation: ("hidden_act", "gelu"),
    eps: ("layer_norm_eps", 1e-5),
    kv_heads: KvHeads::NoKey,
    head_dim: HeadDim::NoKey,
    rope: RopeKeys {
        theta: ("rotary_emb_base", 10_000.0),
        partial: Some(("rotary_pct", 0.25)),
        nested: None,
    },
    gated: false,
    norm: common::LAYER,
    ..common::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_neox",
    architecture: "GPTNeoXForCausalLM",
    read: |c, family| {
        let attention = c.or("attention_bias", true)?;
        let parallel = c.or("use_parallel_residual", true)?;
        let bias = Biases { qkv: attention, attn_out: attention, mlp: true };
        let spec = Spec { bias, ..common::read(c, family, &DIALECT)? };
        Ok(spec.with_residual(if parallel { Residual::Parallel } else { Residual::Pre }))
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, false, map);
        map.insert("use_parallel_residual".into(), json!(s.has_residual(Residual::Parallel)));
    },
    names: Names {
        base: "gpt_neox.",
        embed: "embed_in",
        final_norm: "final_layer_norm",
        head: "embed_out",
        qkv: Qkv::Grouped("attention.query_key_value"),
        attn_out: "attention.dense",
        up: Up::One("mlp.dense_h_to_4h"),
        down: "mlp.dense_4h_to_h",
        ignored: &["attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"],
        ..Names::LLAMA
    },
};
