//! GLM-4 of 2025 (`glm4`: GLM-4-0414, GLM-Z1): like `glm`, with norms before and after each sub-layer.

use super::common::Dialect;
use super::glm;
use crate::spec::{Family, Residual};
use crate::weight::Names;

const DIALECT: Dialect = Dialect { ..glm::DIALECT };

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    architecture: "Glm4ForCausalLM",
    read: |c, family| Ok(glm::read(c, family, &DIALECT)?.with_residual(Residual::Sandwich)),
    write: |s, map| glm::write(s, &DIALECT, map),
    names: Names {
        attn_post_norm: "post_self_attn_layernorm",
        mlp_post_norm: "post_mlp_layernorm",
        ..glm::NAMES
    },
};
