//! Phi-1, 1.5 and 2: one LayerNorm for attention and the MLP, which both read the block's input; biases everywhere, the head
//! included; a share of each head rotates.

use super::common;
use super::common::{Dialect, HeadDim};
use crate::config_rope::RopeKeys;
use crate::spec::{Biases, Family, Residual, Spec};
use crate::weight::{Names, Qkv, Up};

const DIALECT: Dialect = Dialect {
    activation: ("hidden_act", "gelu_new"),
    eps: ("layer_norm_eps", 1e-5),
    head_dim: HeadDim::NoKey,
    rope: RopeKeys {
        theta: ("rope_theta", 10_000.0),
        partial: Some(("partial_rotary_factor", 0.5)),
        nested: None,
    },
    gated: false,
    norm: common::LAYER,
    ..common::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "phi",
    architecture: "PhiForCausalLM",
    read: |c, family| {
        // Norms of q and k with biases, which no published model has.
        c.only("qk_layernorm", "false")?;
        let bias = Biases { qkv: true, attn_out: true, mlp: true };
        let spec = Spec { bias, head_bias: true, ..common::read(c, family, &DIALECT)? };
        Ok(spec.with_residual(Residual::SharedNorm))
    },
    write: |s, map| common::write(s, &DIALECT, map),
    names: Names {
        final_norm: "final_layernorm",
        qkv: Qkv::Separate(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        attn_out: "self_attn.dense",
        up: Up::One("mlp.fc1"),
        down: "mlp.fc2",
        ..Names::LLAMA
    },
};
