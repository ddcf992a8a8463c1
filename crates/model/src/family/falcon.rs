//! Falcon, in its layouts: 7B's (one key head, one norm for attention and the MLP, which both read the block's
//! input), 40B's (groups of heads, a norm for each of the two), 11B's (groups, one norm), and the sequential block of
//! the first 1B.

use fathom_tensor::NormKind;
use serde_json::{Map, Value, json};

use super::common;
use crate::config::{Config, short};
use crate::config_rope::{RopeKeys, RopeSizes, read_rope, write_rope};
use crate::error::Result;
use crate::made::LlamaSizes;
use crate::spec::{Biases, Family, Mlp, Residual, Spec};
use crate::weight::{Names, Qkv, Up};

const ROPE: RopeKeys = RopeKeys { theta: ("rope_theta", 10_000.0), partial: None, nested: None };

pub(super) static FAMILY: Family = Family {
    model_type: "falcon",
    architecture: "FalconForCausalLM",
    read,
    write,
    names: Names {
        base: "transformer.",
        embed: "word_embeddings",
        layers: "h",
        final_norm: "ln_f",
        parallel_norms: Some(["ln_attn", "ln_mlp"]),
        qkv: Qkv::Grouped("self_attention.query_key_value"),
        attn_out: "self_attention.dense",
        up: Up::One("mlp.dense_h_to_4h"),
        down: "mlp.dense_4h_to_h",
        ..Names::LLAMA
    },
};

fn read(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    if c.or("alibi", false)? {
        let what = "is true; Falcon's slopes by distance (ALiBi), which its code rounds to bf16, are not supported, only rotary \
                    positions are";
        return Err(c.refuse("alibi", what));
    }
    c.only("apply_residual_connection_post_layernorm", "false")?;
    // Early files have another key for the hidden size.
    let hidden = match c.nullable("n_embed", None)? {
        Some(size) => c.size_or("n_embed", Some(size))?,
        None => c.size("hidden_size")?,
    };
    let heads = c.size("num_attention_heads")?;
    if hidden % heads != 0 {
        let what = format!("is {heads}, which does not divide the hidden size {hidden}");
        return Err(c.refuse("num_attention_heads", what));
    }
    let (head_dim, (kv_heads, residual)) = (hidden / heads, read_layout(c, heads)?);
    let max_positions = c.size_or("max_position_embeddings", Some(2048))?;
    let rope = read_rope(c, &ROPE, RopeSizes { head_dim, max_positions, original: None })?;
    let ffn = c.size_or("ffn_hidden_size", Some(4 * hidden))?;
    // Redundant in the 11B files.
    let factor = c.nullable::<usize>("ff_factor", None)?;
    if let Some(factor) = factor.filter(|factor| factor.checked_mul(hidden) != Some(ffn)) {
        return Err(c.refuse("ff_factor", format!("is {factor}, but ffn_hidden_size says {ffn}")));
    }
    let (bias, eps): (bool, f64) = (c.or("bias", false)?, c.or("layer_norm_epsilon", 1e-5)?);
    let (layers, vocab) = (c.layers("num_hidden_layers")?, c.size("vocab_size")?);
    let (rope_theta, tied) = (rope.theta, c.or("tie_word_embeddings", true)?);
    let sizes =
        LlamaSizes { hidden, layers, heads, kv_heads, head_dim, ffn, vocab, rope_theta, max_positions, tied };
    Ok(Spec {
        family,
        norm: NormKind { eps: eps as f32, ..common::LAYER },
        norm_bias: true,
        bias: Biases { qkv: bias, attn_out: bias, mlp: bias },
        mlp: Mlp { activation: c.activation("activation", "gelu")?, gated: false },
        ropes: vec![rope],
        ..Spec::llama(sizes)
    }
    .with_residual(residual))
}

/// Number of key heads, and the block's layout. Combinations that fail in Transformers are refused.
fn read_layout(c: &Config<'_>, heads: usize) -> Result<(usize, Residual)> {
    let named = c.size_or("num_kv_heads", Some(heads))?;
    let (new, multi_query) = (c.or("new_decoder_architecture", false)?, c.or("multi_query", true)?);
    let (parallel, norms) = (c.or("parallel_attn", true)?, c.nullable("num_ln_in_parallel_attn", None)?);
    if new {
        c.only("parallel_attn", "true")?;
        if !heads.is_multiple_of(named) {
            let what = format!("is {named}, which does not divide the {heads} attention heads");
            return Err(c.refuse("num_kv_heads", what));
        }
        return match norms.unwrap_or(2) {
            1 => Ok((named, Residual::SharedNorm)),
            2 => Ok((named, Residual::Parallel)),
            other => Err(c.refuse("num_ln_in_parallel_attn", format!("is {other}; it may be 1 or 2"))),
        };
    }
    if parallel && norms.is_some_and(|norms: usize| norms != 1) {
        let what = "is more than one, which only new_decoder_architecture has";
        return Err(c.refuse("num_ln_in_parallel_attn", what));
    }
    if !multi_query && named != heads {
        let what = format!("is {named}; without multi_query and new_decoder_architecture it is {heads}");
        return Err(c.refuse("num_kv_heads", what));
    }
    let residual = if parallel { Residual::SharedNorm } else { Residual::Pre };
    Ok((if multi_query { 1 } else { heads }, residual))
}

fn write(s: &Spec, map: &mut Map<String, Value>) {
    let grouped = s.kv_heads != 1 && s.kv_heads != s.heads;
    let two_norms = s.has_residual(Residual::Parallel);
    let new = two_norms || (s.has_residual(Residual::SharedNorm) && grouped);
    let norms = new.then_some(if two_norms { 2 } else { 1 });
    let values = [
        ("vocab_size", json!(s.vocab)),
        ("hidden_size", json!(s.hidden)),
        ("ffn_hidden_size", json!(s.ffn)),
        ("num_hidden_layers", json!(s.layers.len())),
        ("num_attention_heads", json!(s.heads)),
        ("num_kv_heads", json!(if new { s.kv_heads } else { s.heads })),
        ("alibi", json!(false)),
        ("new_decoder_architecture", json!(new)),
        ("multi_query", json!(s.kv_heads == 1)),
        ("parallel_attn", json!(!s.has_residual(Residual::Pre))),
        ("num_ln_in_parallel_attn", json!(norms)),
        ("bias", json!(s.bias.qkv)),
        ("activation", json!(common::activation_name(s.mlp.activation))),
        ("layer_norm_epsilon", json!(short(s.norm.eps))),
        ("max_position_embeddings", json!(s.max_positions)),
        ("tie_word_embeddings", json!(s.tied)),
    ];
    map.extend(values.map(|(key, value)| (key.to_string(), value)));
    if let Some(rope) = s.ropes.first() {
        write_rope(map, &ROPE, rope, s.head_dim);
    }
}
