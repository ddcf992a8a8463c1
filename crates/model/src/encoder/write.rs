//! Writes an encoder's configuration.

use serde_json::{Map, Value, json};

use super::modernbert;
use super::read::{BUCKETS, Keys};
use crate::config::short;
use crate::family::activation_name;
use crate::spec::{EncoderHead, EncoderParts, Relative, Spec};

/// Writes the keys that its family reads.
pub(super) fn config(s: &Spec, map: &mut Map<String, Value>) {
    let Some(parts) = &s.encoder else { return };
    let keys = Keys::of(s.family);
    let stem = s.family.architecture.trim_end_matches("ForSequenceClassification");
    let class = match parts.head {
        EncoderHead::None => "Model",
        EncoderHead::Masked => "ForMaskedLM",
        EncoderHead::Text(_) => "ForSequenceClassification",
        EncoderHead::Tokens(_) => "ForTokenClassification",
    };
    let mut put = |key: &str, value: Value| map.insert(key.into(), value);
    put("architectures", json!([format!("{stem}{class}")]));
    put("vocab_size", json!(s.vocab));
    put(keys.hidden, json!(s.hidden));
    put(keys.layers, json!(s.layers.len()));
    put(keys.heads, json!(s.heads));
    put(keys.ffn, json!(s.ffn));
    put(keys.activation, json!(activation_name(s.mlp.activation)));
    put("max_position_embeddings", json!(s.max_positions));
    if !keys.eps.0.is_empty() {
        put(keys.eps.0, json!(short(s.norm.eps)));
    }
    if keys.types.is_some() {
        put("type_vocab_size", json!(parts.types));
    }
    if parts.first_position > 0 {
        put("pad_token_id", json!(parts.first_position - 1));
    }
    if parts.head == EncoderHead::Masked && !s.tied {
        put("tie_word_embeddings", json!(false));
    }
    match s.family.model_type {
        "electra" => drop(put("embedding_size", json!(s.embed_cols()))),
        "deberta-v2" => deberta(s, parts, map),
        "modernbert" => modernbert::write(s, map),
        "mpnet" => drop(put(BUCKETS, json!(s.position_bias.map(|bias| bias.buckets)))),
        _ => {}
    }
}

fn deberta(s: &Spec, parts: &EncoderParts, map: &mut Map<String, Value>) {
    let mut put = |key: &str, value: Value| drop(map.insert(key.into(), value));
    let masked = s.family.names.encoder.map_or("", |names| names.masked[2]);
    if masked.starts_with("lm_predictions.") {
        put("legacy", json!(false));
    }
    put("position_biased_input", json!(s.learned_positions.is_some()));
    put("pooler_hidden_size", json!(s.hidden));
    put("pooler_hidden_act", json!(activation_name(parts.pool.unwrap_or(s.mlp.activation))));
    put("relative_attention", json!(parts.relative.is_some()));
    let Some(Relative { distances, c2p, p2c, shared, normed }) = parts.relative else { return };
    let terms = [("c2p", c2p), ("p2c", p2c)].into_iter().filter(|(_, has)| *has).map(|(term, _)| term);
    put("pos_att_type", json!(terms.collect::<Vec<_>>()));
    put("position_buckets", if distances.buckets { json!(distances.span) } else { json!(-1) });
    put("max_relative_positions", json!(distances.max_distance));
    put("norm_rel_ebd", json!(if normed { "layer_norm" } else { "none" }));
    put("share_att_key", json!(shared));
}
