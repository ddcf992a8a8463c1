//! Granite: Llama with factors on embeddings, scores, sub-layers and logits.

use serde_json::{Map, Value, json};

use super::common;
use super::common::Dialect;
use crate::config::{Config, short};
use crate::error::Result;
use crate::spec::{Family, Spec};
use crate::weight::Names;

const DIALECT: Dialect = common::LLAMA;

pub(super) static FAMILY: Family = Family {
    model_type: "granite",
    architecture: "GraniteForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, true)?;
        read_factors(c, Spec { bias, ..common::read(c, family, &DIALECT)? })
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, true, map);
        write_factors(s, map);
    },
    names: Names::LLAMA,
};

/// Reads the factors.
pub(super) fn read_factors(c: &Config<'_>, spec: Spec) -> Result<Spec> {
    Ok(Spec {
        embed_scale: factor(c, "embedding_multiplier")? as f32,
        residual_scale: factor(c, "residual_multiplier")? as f32,
        attention_scale: factor(c, "attention_multiplier")? as f32,
        logit_scale: (1.0 / factor(c, "logits_scaling")?) as f32,
        ..spec
    })
}

/// Writes the keys that [`read_factors`] reads.
pub(super) fn write_factors(s: &Spec, map: &mut Map<String, Value>) {
    let factors = [
        ("embedding_multiplier", short(s.embed_scale)),
        ("residual_multiplier", short(s.residual_scale)),
        ("attention_multiplier", short(s.attention_scale)),
        ("logits_scaling", divisor(s.logit_scale)),
    ];
    map.extend(factors.map(|(key, value)| (key.to_string(), json!(value))));
}

fn factor(c: &Config<'_>, key: &'static str) -> Result<f64> {
    let factor: f64 = c.or(key, 1.0)?;
    if factor != 0.0 && factor.is_finite() {
        return Ok(factor);
    }
    Err(c.refuse(key, format!("is {factor}; a number that is not zero is needed")))
}

/// The divisor that gives `scale`: the shortest such decimal, or the exact inverse.
fn divisor(scale: f32) -> f64 {
    let near = (1.0 / f64::from(scale)) as f32;
    let candidates = [near, near.next_up(), near.next_down()];
    let exact = candidates.into_iter().map(short).find(|x| (1.0 / x) as f32 == scale);
    exact.unwrap_or(1.0 / f64::from(scale))
}
