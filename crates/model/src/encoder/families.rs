//! Encoder families: the names of their weights.

use super::read;
use crate::spec::Family;
use crate::weight::{EncoderNames, Names, Qkv, Up};

/// Unused weights in published folders: pretraining heads, and BERT's pooler, which a model without a classification
/// head does not use.
const LEFT_OVER: &[&str] =
    &["cls.", "lm_head.", "lm_predictions.", "mask_predictions.", "pooler.", "bert.pooler."];

/// Maps TensorFlow's names of norm weights in early BERT folders to the current ones.
pub(super) fn of_norms(name: &str) -> String {
    name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
}

const BERT_NAMES: Names = Names {
    base: "bert.",
    embed: "embeddings.word_embeddings",
    positions: "embeddings.position_embeddings",
    layers: "encoder.layer",
    head: "classifier",
    attn_post_norm: "attention.output.LayerNorm",
    mlp_post_norm: "output.LayerNorm",
    qkv: Qkv::Separate(["attention.self.query", "attention.self.key", "attention.self.value"]),
    attn_out: "attention.output.dense",
    up: Up::One("intermediate.dense"),
    down: "output.dense",
    encoder: Some(EncoderNames {
        types: "embeddings.token_type_embeddings",
        norm: "embeddings.LayerNorm",
        distances: ["encoder.rel_embeddings", "encoder.LayerNorm"],
        positions: ["attention.self.pos_key_proj", "attention.self.pos_query_proj"],
        pool: "bert.pooler.dense",
    }),
    ignored: &[".position_ids"],
    ignored_starts: LEFT_OVER,
    ..Names::LLAMA
};

/// The same, with another name for the projection before the head.
const fn pooled(pool: &'static str) -> Option<EncoderNames> {
    match BERT_NAMES.encoder {
        Some(names) => Some(EncoderNames { pool, ..names }),
        None => None,
    }
}

const ROBERTA_NAMES: Names = Names {
    base: "roberta.",
    head: "classifier.out_proj",
    encoder: pooled("classifier.dense"),
    // A folder may contain BERT's pooler without using it.
    ignored_starts: &[
        "cls.",
        "lm_head.",
        "lm_predictions.",
        "mask_predictions.",
        "pooler.",
        "roberta.pooler.",
    ],
    ..BERT_NAMES
};

const DEBERTA_NAMES: Names = Names {
    base: "deberta.",
    qkv: Qkv::Separate(["attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"]),
    encoder: pooled("pooler.dense"),
    ignored_starts: &["cls.", "lm_head.", "lm_predictions.", "mask_predictions.", "deberta.pooler."],
    ..BERT_NAMES
};

/// Unused weights around the base model in folders of NVIDIA's classifiers.
const CUSTOM_STARTS: &[&str] = &["cls.", "lm_predictions.", "mask_predictions.", "model.pooler.dense."];

const fn family(model_type: &'static str, architecture: &'static str, names: Names) -> Family {
    Family { model_type, architecture, read: read::blocks, write: |_, _| (), names }
}

pub(super) static BERT: Family = family("bert", "BertForSequenceClassification", BERT_NAMES);
/// RoBERTa.
pub(super) static ROBERTA: Family = family("roberta", "RobertaForSequenceClassification", ROBERTA_NAMES);
/// Multilingual RoBERTa.
pub(super) static XLM: Family = family("xlm-roberta", "XLMRobertaForSequenceClassification", ROBERTA_NAMES);
/// DeBERTa v2 and v3.
pub(super) static DEBERTA: Family = family("deberta-v2", "DebertaV2ForSequenceClassification", DEBERTA_NAMES);

/// All encoder families.
pub(super) static ENCODERS: [&Family; 4] = [&BERT, &DEBERTA, &ROBERTA, &XLM];

/// A base model with NVIDIA's head.
pub(super) static CUSTOM_BERT: Family =
    family("bert", "", Names { base: "model.", head: "fc", ignored_starts: CUSTOM_STARTS, ..BERT_NAMES });
/// The same over DeBERTa.
pub(super) static CUSTOM_DEBERTA: Family = family(
    "deberta-v2",
    "",
    Names { base: "model.", head: "fc", ignored_starts: CUSTOM_STARTS, ..DEBERTA_NAMES },
);
