//! GPT-2: learned positions, LayerNorm, biases everywhere, projections stored [in, out], q, k and v fused.

use fathom_tensor::NormKind;
use serde_json::{Map, Value, json};

use super::common;
use crate::config::{Config, short};
use crate::error::Result;
use crate::made::LlamaSizes;
use crate::spec::{Biases, Family, LayerSpec, Mlp, Spec};
use crate::weight::{Names, Qkv, Up};

pub(super) static FAMILY: Family = Family {
    model_type: "gpt2",
    architecture: "GPT2LMHeadModel",
    read,
    write,
    names: Names {
        base: "transformer.",
        embed: "wte",
        embed_norm: "",
        positions: "wpe",
        layers: "h",
        final_norm: "ln_f",
        head: "lm_head",
        attn_norm: "ln_1",
        attn_post_norm: "",
        cross: None,
        source: None,
        distances: "",
        mlp_norm: "ln_2",
        mlp_post_norm: "",
        parallel_norms: None,
        q_norm: "",
        k_norm: "",
        qkv: Qkv::Fused("attn.c_attn"),
        attn_out: "attn.c_proj",
        sinks: "",
        up: Up::One("mlp.c_fc"),
        down: "mlp.c_proj",
        moe: None,
        transposed: true,
        ignored: &["attn.bias", "attn.masked_bias"],
        ignored_starts: &[],
        encoder: None,
        further: None,
    },
};

fn read(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    c.only("scale_attn_weights", "true")?;
    c.only("scale_attn_by_inverse_layer_idx", "false")?;
    c.only("reorder_and_upcast_attn", "false")?;
    let (hidden, heads, positions) = (c.size("n_embd")?, c.size("n_head")?, c.size("n_positions")?);
    if hidden % heads != 0 {
        return Err(c.refuse("n_head", format!("is {heads}, which does not divide the hidden size {hidden}")));
    }
    let layers = c.layers("n_layer")?;
    let sizes = LlamaSizes {
        hidden,
        layers,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: c.size_or("n_inner", Some(4 * hidden))?,
        vocab: c.size("vocab_size")?,
        rope_theta: 1.0, // No layer rotates.
        max_positions: positions,
        tied: c.or("tie_word_embeddings", true)?,
    };
    Ok(Spec {
        family,
        norm: NormKind { eps: c.eps("layer_norm_epsilon", 1e-5)?, ..common::LAYER },
        norm_bias: true,
        bias: Biases { qkv: true, attn_out: true, mlp: true },
        mlp: Mlp { activation: c.activation("activation_function", "gelu_new")?, gated: false },
        layers: vec![LayerSpec::decoder(None, None); layers],
        ropes: Vec::new(),
        learned_positions: Some(positions),
        ..Spec::llama(sizes)
    })
}

fn write(s: &Spec, map: &mut Map<String, Value>) {
    let activation = match common::activation_name(s.mlp.activation) {
        "gelu_pytorch_tanh" => "gelu_new",
        other => other,
    };
    let values = [
        ("vocab_size", json!(s.vocab)),
        ("n_positions", json!(s.max_positions)),
        ("n_embd", json!(s.hidden)),
        ("n_layer", json!(s.layers.len())),
        ("n_head", json!(s.heads)),
        ("n_inner", json!(s.ffn)),
        ("activation_function", json!(activation)),
        ("layer_norm_epsilon", json!(short(s.norm.eps))),
        ("tie_word_embeddings", json!(s.tied)),
    ];
    map.extend(values.map(|(key, value)| (key.to_string(), value)));
}
