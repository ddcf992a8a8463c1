//! OLMo-hybrid: layers of gated DeltaNet with norms before their sub-layers, and, each fourth, of attention as in OLMo 2
//! with norms after them; with or without rotation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::common::{Dialect, HeadDim};
use super::{common, delta};
use crate::config::Config;
use crate::error::Result;
use crate::gated_delta::{DeltaNames, GatedDelta};
use crate::spec::{Family, LayerSpec, PartKind, QkNorm, Residual, Spec};
use crate::weight::Names;
use fathom_tensor::NormKind;

const DIALECT: Dialect = Dialect {
    head_dim: HeadDim::NoKey,
    norm: NormKind { round_first: false, ..common::RMS },
    ..common::LLAMA
};

const NEGATIVE: &str = "linear_allow_neg_eigval";
const ROPE: &str = "rope_parameters";
const THETA: &str = "rope_theta";
const TYPES: &str = "layer_types";
/// Epsilon of the mixer's norm, which no key changes.
const GATED_EPS: f32 = 1e-5;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo_hybrid",
    architecture: "OlmoHybridForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, false)?;
        let spec = Spec { bias, qk_norm: QkNorm::Full, ..common::read(c, family, &DIALECT)? };
        let mut spec = spec.with_residual(Residual::Post);
        if !rotates(c) {
            spec.ropes.clear();
            spec.layers.iter_mut().for_each(|layer| layer.set_rope(None));
        }
        let mixer = Arc::new(read_mixer(c, &spec)?);
        for (layer, attends) in spec.layers.iter_mut().zip(attention(c)?) {
            if !attends {
                *layer = LayerSpec::new([PartKind::Own(mixer.clone()), PartKind::Mlp]);
            }
        }
        Ok(spec)
    },
    write: |s, map| {
        delta::write(s, &DIALECT, map);
        if s.ropes.is_empty() {
            map.insert(ROPE.into(), json!({THETA: null, "rope_type": "default"}));
        }
        map.insert(NEGATIVE.into(), json!(delta::mixer(s).is_some_and(|mixer| mixer.beta == 2.0)));
    },
    names: Names { attn_norm: "attention_layer_norm", mlp_norm: "feedforward_layer_norm", ..Names::SANDWICH },
};

fn read_mixer(c: &Config<'_>, spec: &Spec) -> Result<GatedDelta> {
    // Ranges of initial values.
    for key in
        ["linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"]
    {
        c.raw(key);
    }
    let heads = c.size_or("linear_num_key_heads", Some(spec.heads))?;
    let key = c.size_or("linear_key_head_dim", Some((spec.hidden * 3 / (4 * heads)).max(1)))?;
    let sizes = [heads, spec.heads, key, 2 * key];
    let beta = if c.or(NEGATIVE, true)? { 2.0 } else { 1.0 };
    Ok(GatedDelta { beta, ..delta::read_mixer(c, DeltaNames::Each, sizes, GATED_EPS)? })
}

/// For each layer, whether it has attention, which some must have and some not.
fn attention(c: &Config<'_>) -> Result<Vec<bool>> {
    let mut attends = delta::attention(c)?;
    if c.raw(TYPES).is_none_or(Value::is_null) && !attends.contains(&true) {
        attends.last_mut().into_iter().for_each(|last| *last = true);
    }
    if attends.contains(&true) && attends.contains(&false) {
        return Ok(attends);
    }
    Err(c.refuse(TYPES, "must hold both full_attention and linear_attention"))
}

/// Whether attention rotates: not if the base is `null` rather than absent.
fn rotates(c: &Config<'_>) -> bool {
    let inside = c.raw(ROPE).and_then(|map| map.get(THETA));
    inside.or(c.raw(THETA)).is_none_or(|theta| !theta.is_null())
}
