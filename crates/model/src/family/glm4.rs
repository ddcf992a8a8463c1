//! GLM-4 of 2025 (`glm4`: GLM-4-0414, GLM-Z1): as `glm`, with norms before and after each sub-layer.

use super::common::Dialect;
use super::names::Names;
use super::{Family, glm};
use crate::spec::{Residual, Spec};

const DIALECT: Dialect = Dialect { model_type: "glm4", ..glm::DIALECT };

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    architecture: "Glm4ForCausalLM",
    read: |c| Ok(Spec { residual: Residual::Sandwich, ..glm::read(c, &DIALECT)? }),
    write: |s, map| glm::write(s, &DIALECT, map),
    names: Names {
        attn_post_norm: "post_self_attn_layernorm",
        mlp_post_norm: "post_mlp_layernorm",
        ..glm::NAMES
    },
};
