//! SmolLM 3: Llama, but every fourth layer does not rotate.

use serde_json::json;

use super::common;
use super::common::{Dialect, KvHeads};
use crate::config_rope::RopeKeys;
use crate::spec::{Family, Spec};
use crate::weight::Names;

const DIALECT: Dialect = Dialect {
    tied: true,
    kv_heads: KvHeads::Fixed(4),
    rope: RopeKeys { theta: ("rope_theta", 2_000_000.0), partial: None, nested: None },
    ..common::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "smollm3",
    architecture: "SmolLM3ForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, true)?;
        let mut spec = Spec { bias, ..common::read(c, family, &DIALECT)? };
        let interval: usize = c.or("no_rope_layer_interval", 4)?;
        // 1 means that the layer rotates, despite the key's name.
        let rotates: Option<Vec<u8>> = c.nullable("no_rope_layers", None)?;
        let default = |layer: usize| u8::from(interval == 0 || !(layer + 1).is_multiple_of(interval));
        let rotates = rotates.unwrap_or_else(|| (0..spec.layers.len()).map(default).collect());
        if rotates.len() < spec.layers.len() || rotates.iter().any(|flag| *flag > 1) {
            let what = format!("needs {} entries, each 0 or 1", spec.layers.len());
            return Err(c.refuse("no_rope_layers", what));
        }
        let slides: bool = c.or("use_sliding_window", false)?;
        // Written by Transformers 4, but unused.
        let _: Option<usize> = c.nullable("max_window_layers", None)?;
        let _: Option<usize> = c.nullable("pretraining_tp", None)?;
        let has_window = slides && c.nullable::<usize>("sliding_window", None)?.is_some();
        common::read_layer_types(c, &mut spec, None, |layer| has_window && rotates[layer] == 0)?;
        for (layer, rotates) in spec.layers.iter_mut().zip(rotates) {
            layer.set_rope((rotates == 1).then_some(0));
        }
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, true, map);
        common::write_layer_types(s, map);
        let rotates: Vec<u8> = s.layers.iter().map(|layer| u8::from(layer.rope().is_some())).collect();
        map.insert("no_rope_layers".into(), json!(rotates));
        map.insert("use_sliding_window".into(), json!(s.layers.iter().any(|layer| layer.window().is_some())));
    },
    names: Names::LLAMA,
};
