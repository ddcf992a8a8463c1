//! Cohere 2 (Command R7B, Command A): one LayerNorm without bias for attention and the MLP, which both read the
//! block's input; sliding-window layers rotate neighbouring columns, the others do not rotate; logits are scaled.

use serde_json::json;

use super::common;
use super::common::Dialect;
use crate::config::{Config, short};
use crate::error::Result;
use crate::spec::{Family, Residual, Spec};
use crate::weight::Names;

const DIALECT: Dialect =
    Dialect { eps: ("layer_norm_eps", 1e-5), tied: true, norm: common::LAYER, ..common::LLAMA };

/// Keys from the training code in published files, with the only supported values.
const ONLY: [(&str, &str); 7] = [
    ("order_of_interleaved_layers", "\"local_attn_first\""),
    ("position_embedding_type", "\"rope_gptj\""),
    ("rotary_pct", "1.0"),
    ("use_embedding_sharing", "true"),
    ("use_gated_activation", "true"),
    ("use_parallel_block", "true"),
    ("use_qk_norm", "false"),
];

pub(super) static FAMILY: Family = Family {
    model_type: "cohere2",
    architecture: "Cohere2ForCausalLM",
    read: |c, family| {
        ONLY.iter().try_for_each(|(key, wanted)| c.only(key, wanted))?;
        // Sharding of the embedding in the training code.
        let _: Option<bool> = c.nullable("use_parallel_embedding", None)?;
        let mut spec = Spec {
            bias: common::read_biases(c, false)?,
            norm_bias: false,
            logit_scale: logit_scale(c)?,
            ..common::read(c, family, &DIALECT)?
        }
        .with_residual(Residual::SharedNorm);
        if spec.head_dim * spec.heads != spec.hidden {
            let what = format!("is {}; this family's heads have hidden size over heads", spec.head_dim);
            return Err(c.refuse("head_dim", what));
        }
        spec.ropes[0].interleaved = true;
        // Every n-th layer attends in full; the training code has another name for n.
        let switch: usize = c.or("layer_switch", 4)?;
        let pattern: usize = c.or("sliding_window_pattern", switch)?;
        let _: Option<usize> = c.nullable("_sliding_window_pattern", None)?;
        let slides = |layer: usize| pattern == 0 || !(layer + 1).is_multiple_of(pattern);
        let sliding = common::read_layer_types(c, &mut spec, Some(4096), slides)?;
        for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
            layer.set_rope(slides.then_some(0));
        }
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, false, map);
        common::write_layer_types(s, map);
        map.insert("logit_scale".into(), json!(short(s.logit_scale)));
    },
    names: Names::LLAMA,
};

fn logit_scale(c: &Config<'_>) -> Result<f32> {
    let scale: f64 = c.or("logit_scale", 0.0625)?;
    if scale > 0.0 && scale.is_finite() {
        return Ok(scale as f32);
    }
    Err(c.refuse("logit_scale", format!("is {scale}; a positive number is needed")))
}
