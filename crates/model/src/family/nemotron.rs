//! Nemotron: LayerNorm with one plus the weight, squared ReLU without a gate, rotation of half of each head.

use fathom_tensor::NormKind;

use super::common;
use super::common::Dialect;
use crate::config_rope::RopeKeys;
use crate::spec::{Family, Spec};
use crate::weight::{Names, Up};

const DIALECT: Dialect = Dialect {
    activation: ("hidden_act", "relu2"),
    eps: ("norm_eps", 1e-5),
    rope: RopeKeys {
        theta: ("rope_theta", 10_000.0),
        partial: Some(("partial_rotary_factor", 0.5)),
        nested: None,
    },
    gated: false,
    norm: NormKind { plus_one: true, ..common::LAYER },
    ..common::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "nemotron",
    architecture: "NemotronForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, true)?;
        let spec = Spec { bias, ..common::read(c, family, &DIALECT)? };
        // Published files repeat the head size under the training code's name, which Transformers ignores.
        match c.nullable::<usize>("kv_channels", None)? {
            Some(size) if size != spec.head_dim => {
                Err(c.refuse("kv_channels", format!("is {size}, but a head has {} columns", spec.head_dim)))
            }
            _ => Ok(spec),
        }
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, true, map);
    },
    names: Names { up: Up::One("mlp.up_proj"), ..Names::LLAMA },
};
