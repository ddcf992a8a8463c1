//! Mamba-2: layers of a norm and the mixer alone, without attention, MLPs or positions.

use std::sync::Arc;

use serde_json::json;

use super::common;
use super::mamba::{self, MixerKeys};
use crate::config::short;
use crate::made::LlamaSizes;
use crate::spec::{Family, LayerSpec, PartKind, Spec};
use crate::weight::Names;
use fathom_tensor::NormKind;

const KEYS: MixerKeys = MixerKeys {
    at: "mixer",
    heads: ("num_heads", 128),
    head_dim: ("head_dim", Some(64)),
    state: ("state_size", 128),
    groups: ("n_groups", 8),
    width: "conv_kernel",
    activation: "hidden_act",
    expand: "expand",
    chunk: "chunk_size",
    biases: ["use_conv_bias", "use_bias"],
    expands: true,
    eps: "layer_norm_epsilon",
};

/// Longest sequence where the configuration says none: the model has no positions.
const POSITIONS: usize = 1 << 20;
const MAX_POSITIONS: &str = "max_position_embeddings";

pub(super) static FAMILY: Family = Family {
    model_type: "mamba2",
    architecture: "Mamba2ForCausalLM",
    read: |c, family| {
        let hidden = c.size("hidden_size")?;
        let eps = c.eps(KEYS.eps, 1e-5)?;
        // A key of Transformers 4.
        c.only("rms_norm", "true")?;
        let mixer = mamba::read(c, &KEYS, hidden, eps)?;
        // Initial values, and the type of the residual stream.
        for key in ["time_step_rank", "time_step_min", "time_step_max", "time_step_floor"] {
            c.raw(key);
        }
        let _: bool = c.or("rescale_prenorm_residual", false)?;
        let _: bool = c.or("residual_in_fp32", true)?;
        let sizes = LlamaSizes {
            hidden,
            layers: c.layers("num_hidden_layers")?,
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            ffn: hidden,
            vocab: c.size("vocab_size")?,
            rope_theta: 1e4,
            max_positions: c.size_or(MAX_POSITIONS, Some(POSITIONS))?,
            tied: c.or("tie_word_embeddings", false)?,
        };
        let layer = LayerSpec::new([PartKind::Own(Arc::new(mixer))]);
        let norm = NormKind { eps, ..common::RMS };
        Ok(Spec { family, layers: vec![layer; sizes.layers], norm, ropes: Vec::new(), ..Spec::llama(sizes) })
    },
    write: |s, map| {
        let keys = [
            ("vocab_size", json!(s.vocab)),
            ("hidden_size", json!(s.hidden)),
            ("num_hidden_layers", json!(s.layers.len())),
            (KEYS.eps, json!(short(s.norm.eps))),
            ("tie_word_embeddings", json!(s.tied)),
        ];
        map.extend(keys.map(|(key, value)| (key.to_string(), value)));
        if s.max_positions != POSITIONS {
            map.insert(MAX_POSITIONS.into(), json!(s.max_positions));
        }
        mamba::write(s, &KEYS, map);
    },
    names: Names {
        base: "backbone.",
        embed: "embeddings",
        final_norm: "norm_f",
        attn_norm: "norm",
        ..Names::LLAMA
    },
};
