//! Qwen 2 and 2.5: biases on q, k and v; the later layers may slide.

use serde_json::{Map, Value, json};

use super::common;
use super::common::Dialect;
use crate::config::Config;
use crate::error::Result;
use crate::spec::{Biases, Family, Spec};
use crate::weight::Names;

const DIALECT: Dialect = common::LLAMA;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    read: |c, family| {
        let bias = Biases { qkv: true, attn_out: false, mlp: false };
        let mut spec = Spec { bias, ..common::read(c, family, &DIALECT)? };
        read_windows(c, &mut spec)?;
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        write_windows(s, map);
    },
    names: Names::LLAMA,
};

/// Reads the windows: with `use_sliding_window`, layers from `max_window_layers` on slide, unless `layer_types` is
/// given.
pub(super) fn read_windows(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    let slides: bool = c.or("use_sliding_window", false)?;
    let full: usize = c.or("max_window_layers", 28)?;
    if slides {
        common::read_layer_types(c, spec, Some(4096), |layer| layer >= full)?;
    } else {
        // Files may have a window size without using it.
        let _: Option<usize> = c.nullable("sliding_window", None)?;
        if common::sliding_layers(c, spec.layers.len())?.is_some_and(|sliding| sliding.contains(&true)) {
            return Err(c.refuse("layer_types", "has sliding layers, but use_sliding_window is false"));
        }
    }
    Ok(())
}

/// Writes the keys that [`read_windows`] reads.
pub(super) fn write_windows(s: &Spec, map: &mut Map<String, Value>) {
    let slides = s.layers.iter().any(|layer| layer.window().is_some());
    map.insert("use_sliding_window".into(), json!(slides));
    common::write_layer_types(s, map);
}
