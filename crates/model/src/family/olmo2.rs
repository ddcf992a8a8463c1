//! OLMo 2: norms after the sub-layers only; q and k are normalised over all heads together.

use super::common;
use super::common::Dialect;
use crate::spec::{Family, QkNorm, Residual, Spec};
use crate::weight::Names;
use fathom_tensor::NormKind;

const DIALECT: Dialect = Dialect {
    eps: ("rms_norm_eps", 1e-5),
    norm: NormKind { round_first: false, ..common::RMS },
    ..common::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "olmo2",
    architecture: "Olmo2ForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, false)?;
        let spec = Spec { bias, qk_norm: QkNorm::Full, ..common::read(c, family, &DIALECT)? };
        Ok(spec.with_residual(Residual::Post))
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, false, map);
    },
    names: Names { attn_norm: "", mlp_norm: "", ..Names::SANDWICH },
};
