//! Gemma 2: norms before and after each sub-layer, soft caps on scores and logits, every other layer slides.

use super::common::{Dialect, KvHeads};
use super::{common, gemma};
use crate::config::Config;
use crate::error::Result;
use crate::spec::{Family, Residual, Spec};
use crate::weight::Names;

const DIALECT: Dialect = Dialect {
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    kv_heads: KvHeads::Fixed(4),
    ..gemma::DIALECT
};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma2",
    architecture: "Gemma2ForCausalLM",
    read: |c, family| {
        // Files carry both spellings of the activation; Transformers reads this one.
        let _: Option<String> = c.nullable("hidden_act", None)?;
        let mut spec = sandwich(c, family, &DIALECT, [Some(50.0), Some(30.0)])?;
        common::read_layer_types(c, &mut spec, Some(4096), |layer| layer % 2 == 0)?;
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        write_sandwich(s, map);
        common::write_layer_types(s, map);
    },
    names: Names::SANDWICH,
};

/// Reads the parts common to Gemma 2 and 3; `caps` are the defaults of the soft caps on scores and logits.
pub(super) fn sandwich(
    c: &Config<'_>,
    family: &'static Family,
    dialect: &Dialect,
    caps: [Option<f64>; 2],
) -> Result<Spec> {
    Ok(Spec {
        attention_scale: common::read_query_scale(c, 256.0)?,
        attention_softcap: common::read_softcap(c, "attn_logit_softcapping", caps[0])?,
        logit_softcap: common::read_softcap(c, "final_logit_softcapping", caps[1])?,
        ..gemma::read(c, family, dialect)?
    }
    .with_residual(Residual::Sandwich))
}

/// Writes the keys that [`sandwich`] reads.
pub(super) fn write_sandwich(s: &Spec, map: &mut serde_json::Map<String, serde_json::Value>) {
    common::write_biases(s, false, map);
    common::write_query_scale(s, map);
    map.insert("attn_logit_softcapping".into(), common::softcap_value(s.attention_softcap));
    map.insert("final_logit_softcapping".into(), common::softcap_value(s.logit_softcap));
}
