//! Llama 2, 3, 3.1, 3.2 and all that share its code: RMSNorm, SwiGLU, grouped queries, rotary halves.

use super::{Family, common, names};
use crate::spec::Spec;

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    read: |c| {
        let bias = common::read_biases(c, true)?;
        Ok(Spec { bias, ..common::read(c, &common::LLAMA)? })
    },
    write: |s, map| {
        common::write(s, &common::LLAMA, map);
        common::write_biases(s, true, map);
    },
    names: names::LLAMA,
};
