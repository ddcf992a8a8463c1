//! Qwen 3: q and k are normalised per head; the head size is free.

use super::common::{Dialect, HeadDim};
use super::{common, qwen2};
use crate::spec::{Family, QkNorm, Spec};
use crate::weight::Names;

const DIALECT: Dialect = Dialect { head_dim: HeadDim::Fixed(128), ..common::LLAMA };

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, false)?;
        let mut spec = Spec { bias, qk_norm: QkNorm::PerHead, ..common::read(c, family, &DIALECT)? };
        qwen2::read_windows(c, &mut spec)?;
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, false, map);
        qwen2::write_windows(s, map);
    },
    names: Names::LLAMA,
};
