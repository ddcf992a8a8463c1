//! MPT (MosaicML, 2023): slopes by distance instead of positions, LayerNorm without biases, q, k and v fused.

use fathom_tensor::{Activation, NormKind};
use serde_json::{Map, Value, json};

use super::common;
use crate::config::{Config, short};
use crate::error::Result;
use crate::made::LlamaSizes;
use crate::spec::{Family, LayerSpec, Mlp, Spec};
use crate::weight::{Names, Qkv, Up};

const ATTENTION: &str = "attn_config";
const SCALE: &str = "softmax_scale";
/// Columns inside the MLP for each of the residual stream: the published code has no other number.
const EXPANSION: usize = 4;

/// Keys without influence on a model with slopes.
const UNUSED: [&str; 7] =
    ["emb_pdrop", "init_config", "init_device", "learned_pos_emb", "norm_type", "tokenizer_name", "verbose"];

pub(super) static FAMILY: Family = Family {
    model_type: "mpt",
    architecture: "MptForCausalLM",
    read,
    write,
    names: Names {
        base: "transformer.",
        embed: "wte",
        layers: "blocks",
        final_norm: "norm_f",
        attn_norm: "norm_1",
        mlp_norm: "norm_2",
        qkv: Qkv::Fused("attn.Wqkv"),
        attn_out: "attn.out_proj",
        up: Up::One("ffn.up_proj"),
        down: "ffn.down_proj",
        ..Names::LLAMA
    },
};

fn read(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    for (key, wanted) in [
        ("expansion_ratio", "4"),
        ("no_bias", "true"),
        ("logit_scale", "null"),
        ("embedding_fraction", "1.0"),
    ] {
        c.only(key, wanted)?;
    }
    for key in UNUSED {
        c.raw(key);
    }
    let (hidden, heads, layers) = (c.size("d_model")?, c.size("n_heads")?, c.layers("n_layers")?);
    if !hidden.is_multiple_of(heads) {
        return Err(
            c.refuse("n_heads", format!("is {heads}, which does not divide the hidden size {hidden}"))
        );
    }
    let attention_scale = c.within(ATTENTION, family.model_type, |c| {
        for (key, wanted) in [
            ("attn_type", "\"multihead_attention\""),
            ("alibi", "true"),
            // Transformers takes 8 whatever a file says.
            ("alibi_bias_max", "8"),
            ("attn_uses_sequence_id", "false"),
            ("clip_qkv", "null"),
            ("prefix_lm", "false"),
            ("qk_ln", "false"),
        ] {
            c.only(key, wanted)?;
        }
        c.raw("attn_impl");
        let scale: f64 = c.or(SCALE, usual_scale(hidden / heads))?;
        if !(scale.is_finite() && scale > 0.0) {
            return Err(c.refuse(SCALE, format!("is {scale}; a positive number or null is needed")));
        }
        Ok(scale as f32)
    })?;
    let sizes = LlamaSizes {
        hidden,
        layers,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: EXPANSION * hidden,
        vocab: c.size("vocab_size")?,
        rope_theta: 1.0, // No layer rotates.
        max_positions: c.size_or("max_seq_len", Some(2048))?,
        tied: c.or("tie_word_embeddings", true)?,
    };
    Ok(Spec {
        family,
        norm: NormKind { eps: c.eps("layer_norm_epsilon", 1e-5)?, ..common::LAYER },
        mlp: Mlp { activation: Activation::GeluErf, gated: false },
        attention_scale,
        layers: vec![LayerSpec::decoder(None, None); layers],
        slopes: true,
        ropes: Vec::new(),
        ..Spec::llama(sizes)
    })
}

fn usual_scale(head_dim: usize) -> f64 {
    (head_dim as f64).powf(-0.5)
}

fn write(s: &Spec, map: &mut Map<String, Value>) {
    let usual = s.attention_scale == usual_scale(s.head_dim) as f32;
    let attention = json!({
        "attn_type": "multihead_attention",
        "alibi": true,
        "alibi_bias_max": 8,
        SCALE: (!usual).then(|| short(s.attention_scale)),
    });
    let values = [
        ("vocab_size", json!(s.vocab)),
        ("d_model", json!(s.hidden)),
        ("n_layers", json!(s.layers.len())),
        ("n_heads", json!(s.heads)),
        ("expansion_ratio", json!(EXPANSION)),
        ("max_seq_len", json!(s.max_positions)),
        ("layer_norm_epsilon", json!(short(s.norm.eps))),
        ("tie_word_embeddings", json!(s.tied)),
        ("no_bias", json!(true)),
        (ATTENTION, attention),
    ];
    map.extend(values.map(|(key, value)| (key.to_string(), value)));
}
