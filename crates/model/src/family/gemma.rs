//! Gemma 1: norms multiply by one plus the weight, embeddings are scaled by the root of the hidden size, gated tanh
//! GELU.

use fathom_tensor::Activation;
use serde_json::json;

use super::common;
use super::common::{Dialect, HeadDim};
use crate::config::Config;
use crate::error::Result;
use crate::spec::{Family, Mlp, Spec};
use crate::weight::Names;

/// Keys of all Gemmas.
pub(super) const DIALECT: Dialect = Dialect {
    activation: ("hidden_act", "gelu_pytorch_tanh"),
    tied: true,
    head_dim: HeadDim::Fixed(256),
    norm: common::RMS_PLUS_ONE,
    ..common::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma",
    architecture: "GemmaForCausalLM",
    read: |c, family| {
        let spec = read(c, family, &DIALECT)?;
        // Early files say "gelu" but mean the tanh approximation; some have that under a second key.
        let activation = match spec.mlp.activation {
            Activation::GeluErf => Activation::GeluTanh,
            other => other,
        };
        let second = c.activation("hidden_activation", "gelu_pytorch_tanh")?;
        if c.raw("hidden_activation").is_some_and(|value| !value.is_null()) && second != activation {
            return Err(c.refuse("hidden_activation", "and `hidden_act` disagree"));
        }
        Ok(Spec { mlp: Mlp { activation, gated: true }, ..spec })
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, false, map);
        map.insert("hidden_activation".into(), json!(common::activation_name(s.mlp.activation)));
    },
    names: Names::LLAMA,
};

/// Reads the parts common to all Gemmas.
pub(super) fn read(c: &Config<'_>, family: &'static Family, dialect: &Dialect) -> Result<Spec> {
    let bias = common::read_biases(c, false)?;
    c.only("use_bidirectional_attention", "false")?;
    let spec = common::read(c, family, dialect)?;
    Ok(Spec { bias, embed_scale: (spec.hidden as f64).sqrt() as f32, ..spec })
}
