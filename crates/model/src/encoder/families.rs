//! Encoder families: the names of their weights.

use super::{read, write};
use crate::spec::Family;
use crate::weight::{EncoderNames, Names, Qkv, Up};

/// Unused weights in published folders: pretraining heads, and BERT's pooler, which a model without a classification
/// head does not use.
const LEFT_OVER: &[&str] =
    &["cls.", "lm_head.", "lm_predictions.", "mask_predictions.", "pooler.", "bert.pooler.", "classifier."];

/// Maps TensorFlow's names of norm weights in early BERT folders to the current ones.
pub(crate) fn of_norms(name: &str) -> String {
    name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
}

const BERT_PARTS: EncoderNames = EncoderNames {
    types: "embeddings.token_type_embeddings",
    project: "",
    distances: ["encoder.rel_embeddings", "encoder.LayerNorm"],
    positions: ["attention.self.pos_key_proj", "attention.self.pos_query_proj"],
    pool: ["bert.pooler.dense", ""],
    tokens: "classifier",
    masked: ["cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"],
    own_head: "cls.predictions.decoder",
};

const BERT_NAMES: Names = Names {
    base: "bert.",
    embed: "embeddings.word_embeddings",
    embed_norm: "embeddings.LayerNorm",
    positions: "embeddings.position_embeddings",
    layers: "encoder.layer",
    head: "classifier",
    attn_post_norm: "attention.output.LayerNorm",
    mlp_post_norm: "output.LayerNorm",
    qkv: Qkv::Separate(["attention.self.query", "attention.self.key", "attention.self.value"]),
    attn_out: "attention.output.dense",
    up: Up::One("intermediate.dense"),
    down: "output.dense",
    encoder: Some(BERT_PARTS),
    ignored: &[".position_ids"],
    ignored_starts: LEFT_OVER,
    ..Names::LLAMA
};

const ROBERTA_NAMES: Names = Names {
    base: "roberta.",
    head: "classifier.out_proj",
    encoder: Some(EncoderNames {
        pool: ["classifier.dense", ""],
        masked: ["lm_head.dense", "lm_head.layer_norm", "lm_head"],
        own_head: "lm_head.decoder",
        ..BERT_PARTS
    }),
    // A folder may contain BERT's pooler without using it.
    ignored_starts: &[
        "cls.",
        "lm_head.",
        "lm_predictions.",
        "mask_predictions.",
        "pooler.",
        "roberta.pooler.",
        "classifier.",
    ],
    ..BERT_NAMES
};

const MPNET_NAMES: Names = Names {
    base: "mpnet.",
    distances: "encoder.relative_attention_bias.weight",
    attn_post_norm: "attention.LayerNorm",
    qkv: Qkv::Separate(["attention.attn.q", "attention.attn.k", "attention.attn.v"]),
    attn_out: "attention.attn.o",
    ignored_starts: &["lm_head.", "pooler.", "mpnet.pooler.", "classifier."],
    ..ROBERTA_NAMES
};

const DEBERTA_PARTS: EncoderNames = EncoderNames { pool: ["pooler.dense", ""], ..BERT_PARTS };

const DEBERTA_NAMES: Names = Names {
    base: "deberta.",
    qkv: Qkv::Separate(["attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"]),
    encoder: Some(DEBERTA_PARTS),
    ignored_starts: &[
        "cls.",
        "lm_head.",
        "lm_predictions.",
        "mask_predictions.",
        "deberta.pooler.",
        "pooler.",
        "classifier.",
    ],
    ..BERT_NAMES
};

const ELECTRA_NAMES: Names = Names {
    base: "electra.",
    head: "classifier.out_proj",
    encoder: Some(EncoderNames {
        project: "embeddings_project",
        pool: ["classifier.dense", ""],
        masked: ["generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"],
        own_head: "generator_lm_head",
        ..BERT_PARTS
    }),
    ignored_starts: &[
        "discriminator_predictions.",
        "generator_predictions.",
        "generator_lm_head.",
        "classifier.",
    ],
    ..BERT_NAMES
};

const DISTILBERT_NAMES: Names = Names {
    base: "distilbert.",
    layers: "transformer.layer",
    attn_post_norm: "sa_layer_norm",
    mlp_post_norm: "output_layer_norm",
    qkv: Qkv::Separate(["attention.q_lin", "attention.k_lin", "attention.v_lin"]),
    attn_out: "attention.out_lin",
    up: Up::One("ffn.lin1"),
    down: "ffn.lin2",
    encoder: Some(EncoderNames {
        pool: ["pre_classifier", ""],
        masked: ["vocab_transform", "vocab_layer_norm", "vocab_projector"],
        own_head: "vocab_projector",
        ..BERT_PARTS
    }),
    ignored_starts: &[
        "vocab_transform.",
        "vocab_layer_norm.",
        "vocab_projector.",
        "pre_classifier.",
        "classifier.",
    ],
    ..BERT_NAMES
};

const MODERNBERT_NAMES: Names = Names {
    base: "model.",
    embed: "embeddings.tok_embeddings",
    embed_norm: "embeddings.norm",
    layers: "layers",
    final_norm: "final_norm",
    head: "classifier",
    attn_norm: "attn_norm",
    mlp_norm: "mlp_norm",
    qkv: Qkv::Fused("attn.Wqkv"),
    attn_out: "attn.Wo",
    up: Up::One("mlp.Wi"),
    down: "mlp.Wo",
    encoder: Some(EncoderNames {
        pool: ["head.dense", "head.norm"],
        masked: ["head.dense", "head.norm", "decoder"],
        own_head: "decoder",
        ..BERT_PARTS
    }),
    ignored: &[],
    ignored_starts: &["head.", "decoder.", "classifier."],
    ..Names::LLAMA
};

/// Unused weights around the base model in folders of NVIDIA's classifiers.
const CUSTOM_STARTS: &[&str] = &["cls.", "lm_predictions.", "mask_predictions.", "model.pooler.dense."];

const fn family(model_type: &'static str, architecture: &'static str, names: Names) -> Family {
    Family { model_type, architecture, read: read::blocks, write: write::config, names }
}

pub(super) static BERT: Family = family("bert", "BertForSequenceClassification", BERT_NAMES);
/// RoBERTa.
pub(super) static ROBERTA: Family = family("roberta", "RobertaForSequenceClassification", ROBERTA_NAMES);
/// Multilingual RoBERTa.
pub(super) static XLM: Family = family("xlm-roberta", "XLMRobertaForSequenceClassification", ROBERTA_NAMES);
/// MPNet.
pub(super) static MPNET: Family = family("mpnet", "MPNetForSequenceClassification", MPNET_NAMES);
/// DeBERTa v2 and v3.
pub(super) static DEBERTA: Family = family("deberta-v2", "DebertaV2ForSequenceClassification", DEBERTA_NAMES);
/// The same with the masked-language head of `legacy: false`, which always is the table of the embedding.
pub(super) static DEBERTA_NEW: Family = family(
    "deberta-v2",
    "DebertaV2ForSequenceClassification",
    Names { encoder: Some(DEBERTA_NEW_PARTS), ..DEBERTA_NAMES },
);
const DEBERTA_NEW_PARTS: EncoderNames = EncoderNames {
    masked: ["lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm", "lm_predictions.lm_head"],
    own_head: "",
    ..DEBERTA_PARTS
};
/// ELECTRA.
pub(super) static ELECTRA: Family = family("electra", "ElectraForSequenceClassification", ELECTRA_NAMES);
/// DistilBERT.
pub(super) static DISTILBERT: Family =
    family("distilbert", "DistilBertForSequenceClassification", DISTILBERT_NAMES);
/// ModernBERT.
pub(super) static MODERNBERT: Family =
    family("modernbert", "ModernBertForSequenceClassification", MODERNBERT_NAMES);

/// All encoder families.
pub(super) static ENCODERS: [&Family; 8] =
    [&BERT, &DEBERTA, &DISTILBERT, &ELECTRA, &MODERNBERT, &MPNET, &ROBERTA, &XLM];

/// A base model with NVIDIA's head.
pub(super) static CUSTOM_BERT: Family =
    family("bert", "", Names { base: "model.", head: "fc", ignored_starts: CUSTOM_STARTS, ..BERT_NAMES });
/// The same over DeBERTa.
pub(super) static CUSTOM_DEBERTA: Family = family(
    "deberta-v2",
    "",
    Names { base: "model.", head: "fc", ignored_starts: CUSTOM_STARTS, ..DEBERTA_NAMES },
);
