//! Llama 2, 3, 3.1, 3.2 and all that share its code: RMSNorm, SwiGLU, grouped queries, rotary halves.

use super::common;
use crate::spec::{Family, Spec};
use crate::weight::Names;

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, true)?;
        Ok(Spec { bias, ..common::read(c, family, &common::LLAMA)? })
    },
    write: |s, map| {
        common::write(s, &common::LLAMA, map);
        common::write_biases(s, true, map);
    },
    names: Names::LLAMA,
};
