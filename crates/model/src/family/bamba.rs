//! Bamba: layers of Mamba-2 and a few of attention, each with a SwiGLU; half of each head rotates.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::common::{Dialect, KvHeads};
use super::{common, mamba};
use crate::config::Config;
use crate::config_rope::{RopeKeys, parameters};
use crate::error::Result;
use crate::spec::{Family, LayerSpec, PartKind, Spec};
use crate::weight::{Names, Up};

const DIALECT: Dialect = Dialect {
    eps: ("rms_norm_eps", 1e-5),
    kv_heads: KvHeads::Fixed(8),
    rope: RopeKeys { theta: ("rope_theta", 10_000.0), partial: Some(("", 0.5)), nested: None },
    ..common::LLAMA
};

/// Names that Bamba and Falcon-H1 share.
pub(super) const NAMES: Names = Names {
    final_norm: "final_layernorm",
    mlp_norm: "pre_ff_layernorm",
    up: Up::Pair(["feed_forward.gate_proj", "feed_forward.up_proj"]),
    down: "feed_forward.down_proj",
    ..Names::LLAMA
};

const INDICES: &str = "attn_layer_indices";
const PARTIAL: &str = "partial_rotary_factor";

pub(super) static FAMILY: Family = Family {
    model_type: "bamba",
    architecture: "BambaForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, true)?;
        let mut spec = Spec { bias, ..common::read(c, family, &DIALECT)? };
        let rotated = spec.ropes.first().map(|rope| rope.rot_dim);
        match c.nullable::<usize>("attn_rotary_emb", None)? {
            Some(columns) if Some(columns) != rotated => {
                let what = format!("is {columns}, and Transformers rotates half of each head");
                return Err(c.refuse("attn_rotary_emb", what));
            }
            _ => {}
        }
        // Transformers reads it from the map alone.
        c.raw(PARTIAL);
        // Settings of generation and of training.
        c.raw("num_logits_to_keep");
        c.raw("z_loss_coefficient");
        let mixer = Arc::new(mamba::read(c, &mamba::BAMBA, spec.hidden, spec.norm.eps)?);
        let attention = indices(c, spec.layers.len())?;
        for (index, layer) in spec.layers.iter_mut().enumerate() {
            if !attention.contains(&index) {
                *layer = LayerSpec::new([PartKind::Own(mixer.clone()), PartKind::Mlp]);
            }
        }
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        if let Some(rope) = s.ropes.first().filter(|rope| 2 * rope.rot_dim != s.head_dim) {
            let mut all = parameters(rope);
            all[PARTIAL] = json!(rope.rot_dim as f64 / s.head_dim as f64);
            map.insert("rope_parameters".into(), all);
            map.remove("rope_scaling");
        }
        common::write_biases(s, true, map);
        mamba::write(s, &mamba::BAMBA, map);
        write_indices(s, map);
    },
    names: NAMES,
};

/// Layers with attention.
fn indices(c: &Config<'_>, layers: usize) -> Result<Vec<usize>> {
    let indices: Vec<usize> = c.or(INDICES, Vec::new())?;
    // Transformers 5 may write what follows from them.
    for key in ["layers_block_type", "layer_types"] {
        if let Some(kinds) =
            mamba::read_kinds(c, key, &[mamba::LayerKind::Mixer, mamba::LayerKind::Attention])?
        {
            let attends = |index: usize| kinds.get(index) == Some(&mamba::LayerKind::Attention);
            if kinds.len() != layers || (0..layers).any(|index| attends(index) != indices.contains(&index)) {
                return Err(c.refuse(key, format!("and `{INDICES}` disagree")));
            }
        }
    }
    match indices.iter().find(|index| **index >= layers) {
        Some(index) => Err(c.refuse(INDICES, format!("holds {index}, and there are {layers} layers"))),
        None => Ok(indices),
    }
}

fn write_indices(s: &Spec, map: &mut Map<String, Value>) {
    let attends = |(_, layer): &(usize, &LayerSpec)| layer.reach().is_some();
    let indices: Vec<usize> = s.layers.iter().enumerate().filter(attends).map(|(index, _)| index).collect();
    map.insert(INDICES.into(), json!(indices));
}
