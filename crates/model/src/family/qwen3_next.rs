//! Qwen3-Next: layers of gated DeltaNet and, each fourth, of attention with gates; experts with a gated shared one.

use super::delta;
use crate::gated_delta::DeltaNames;
use crate::spec::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_next",
    architecture: "Qwen3NextForCausalLM",
    read: |c, family| {
        let mut spec = delta::read(c, family, &delta::DIALECT, DeltaNames::Interleaved)?;
        delta::read_experts(c, &mut spec, [512, 10])?;
        Ok(spec)
    },
    write: |s, map| {
        delta::write(s, &delta::DIALECT, map);
        delta::write_experts(s, map);
    },
    names: delta::NAMES,
};
