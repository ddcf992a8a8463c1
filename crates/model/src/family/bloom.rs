//! BLOOM (arXiv 2211.05100): slopes by distance instead of positions, a norm after the embedding, biases everywhere, q, k and v
//! interleaved per head.

use fathom_tensor::{Activation, NormKind};
use serde_json::{Map, Value, json};

use super::common;
use crate::config::{Config, short};
use crate::error::Result;
use crate::made::LlamaSizes;
use crate::spec::{Biases, Family, LayerSpec, Mlp, Spec};
use crate::weight::{Names, Qkv, Up};

/// Keys of Megatron's training, and of the order in which Transformers adds what were parts of ranks.
const UNUSED: [&str; 9] = [
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "offset_alibi",
    "pretraining_tp",
    "skip_bias_add",
    "skip_bias_add_qkv",
    "slow_but_exact",
    "unk_token_id",
];

pub(super) static FAMILY: Family = Family {
    model_type: "bloom",
    architecture: "BloomForCausalLM",
    read,
    write,
    names: Names {
        base: "transformer.",
        embed: "word_embeddings",
        embed_norm: "word_embeddings_layernorm",
        layers: "h",
        final_norm: "ln_f",
        qkv: Qkv::Grouped("self_attention.query_key_value"),
        attn_out: "self_attention.dense",
        up: Up::One("mlp.dense_h_to_4h"),
        down: "mlp.dense_4h_to_h",
        ..Names::LLAMA
    },
};

fn read(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    c.only("apply_residual_connection_post_layernorm", "false")?;
    for key in UNUSED {
        c.raw(key);
    }
    let [hidden_key, heads_key, layers_key] =
        [["hidden_size", "n_embed"], ["n_head", "num_attention_heads"], ["n_layer", "num_hidden_layers"]]
            .map(|keys| c.present(&keys));
    let (hidden, heads, layers) = (c.size(hidden_key)?, c.size(heads_key)?, c.layers(layers_key)?);
    if !hidden.is_multiple_of(heads) {
        let what = format!("is {heads}, which does not divide the hidden size {hidden}");
        return Err(c.refuse(heads_key, what));
    }
    let sizes = LlamaSizes {
        hidden,
        layers,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: 4 * hidden,
        vocab: c.size("vocab_size")?,
        rope_theta: 1.0, // No layer rotates.
        max_positions: c.size_or("seq_length", Some(2048))?,
        tied: c.or("tie_word_embeddings", true)?,
    };
    Ok(Spec {
        family,
        norm: NormKind { eps: c.eps("layer_norm_epsilon", 1e-5)?, ..common::LAYER },
        norm_bias: true,
        bias: Biases { qkv: true, attn_out: true, mlp: true },
        mlp: Mlp { activation: Activation::GeluTanh, gated: false },
        layers: vec![LayerSpec::decoder(None, None); layers],
        slopes: true,
        ropes: Vec::new(),
        embed_norm: true,
        ..Spec::llama(sizes)
    })
}

fn write(s: &Spec, map: &mut Map<String, Value>) {
    let values = [
        ("vocab_size", json!(s.vocab)),
        ("hidden_size", json!(s.hidden)),
        ("n_layer", json!(s.layers.len())),
        ("n_head", json!(s.heads)),
        ("seq_length", json!(s.max_positions)),
        ("apply_residual_connection_post_layernorm", json!(false)),
        ("layer_norm_epsilon", json!(short(s.norm.eps))),
        ("tie_word_embeddings", json!(s.tied)),
    ];
    map.extend(values.map(|(key, value)| (key.to_string(), value)));
}
