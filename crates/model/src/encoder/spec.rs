//! What a `config.json` says of an encoder.

use std::collections::BTreeMap;
use std::path::Path;

use fathom_grad::Distances;
use fathom_tensor::{Activation, NormKind};
use serde_json::{Map, Value};

use super::names::{CUSTOM_BERT, CUSTOM_DEBERTA, DEBERTA, ENCODERS};
use super::task::{Task, ranks_by_sigmoid};
use crate::config::{Config, MAX_SIZE};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::files::json::read_object;
use crate::spec::{Biases, Ffn, LayerSpec, Mixer, Mlp, QkNorm, Reach, Residual, Spec};

/// An encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// The architecture.
    pub model: Spec,
    /// What the classes are called; none of an encoder without a classification head.
    pub labels: Vec<String>,
    /// What the logits are; none of an encoder without a head.
    pub task: Option<Task>,
    /// Whether a logit that ranks goes through a sigmoid, if the configuration says so.
    sigmoid: Option<bool>,
}

/// What a model has besides blocks if it is an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderParts {
    /// The row of the position table that a text's first token has: 0, or behind the row of padding (RoBERTa).
    pub first_position: usize,
    /// Rows of the table of token types; 0 for none. Tokens are of the first, those of a second text of the second.
    pub types: usize,
    /// Positions in the scores of attention.
    pub relative: Option<Relative>,
    /// A projection before the head, and its activation.
    pub pool: Option<Activation>,
    /// Rows of the head; 0 without one.
    pub labels: usize,
}

/// Disentangled attention: scores have terms by distance (DeBERTa).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    /// The rows of the table of distances.
    pub distances: Distances,
    /// Content meets the position of the key.
    pub c2p: bool,
    /// The key's content meets the position of the query.
    pub p2c: bool,
    /// Positions go through the projections of content.
    pub shared: bool,
    /// The table of distances is normalised.
    pub normed: bool,
}

/// Keys that published configurations have and that change nothing here.
const IGNORED: [&str; 16] = [
    "output_past",
    // Of Sentence-Transformers, see `Task`.
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "tie_word_embeddings",
    "legacy",
    "pooler_dropout",
    "cls_dropout",
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "conv_act",
    "summary_last_dropout",
    "z_steps",
];

impl EncoderSpec {
    /// Reads the configuration of a folder. Folders of NVIDIA's classifiers name a `base_model` in the place of an
    /// architecture; that model's configuration is then `base/config.json`.
    ///
    /// # Errors
    /// Names the key that is missing, unknown, or has a value that is not supported.
    pub fn open(folder: &Path) -> Result<EncoderSpec> {
        let file = folder.join("config.json");
        let map = read_object(&file)?;
        let Some(base) = map.get("base_model").filter(|_| !map.contains_key("model_type")) else {
            return EncoderSpec::read(&file, &map, None);
        };
        let path = folder.join("base/config.json");
        if !path.is_file() {
            let what = format!(
                "is {base}, whose configuration is needed: copy its config.json to {}",
                path.display()
            );
            return Err(Error::config(&file, "base_model", what));
        }
        let head = Config::new(&file, &map);
        ["base_model", "fc_dropout"].iter().for_each(|key| {
            head.raw(key);
        });
        head.finish("classifier over a base model")?;
        EncoderSpec::read(&path, &read_object(&path)?, Some(&head))
    }

    /// Whether a folder's configuration is an encoder's, supported or not.
    pub fn is_of(folder: &Path) -> bool {
        read_object(&folder.join("config.json")).is_ok_and(|map| EncoderSpec::claims(&map))
    }

    /// Whether a configuration is an encoder's: what other readers are not for.
    pub(crate) fn claims(map: &Map<String, Value>) -> bool {
        let kind = map.get("model_type").and_then(Value::as_str);
        kind.map_or(map.contains_key("base_model"), |kind| of_kind(kind).is_some())
    }

    /// Texts may have this many tokens; `None` for any number.
    pub fn max_tokens(&self) -> Option<usize> {
        self.model.learned_positions.map(|rows| rows - self.first_position())
    }

    /// The position of a text's first token.
    pub fn first_position(&self) -> usize {
        self.model.encoder.as_ref().map_or(0, |parts| parts.first_position)
    }

    /// Whether the logit that ranks goes through a sigmoid: as the configuration says, or else where it is the only one, as in
    /// Sentence-Transformers.
    pub fn ranks_by_sigmoid(&self) -> bool {
        self.sigmoid.unwrap_or(self.labels.len() == 1)
    }

    /// Rows of the table of token types.
    pub fn types(&self) -> usize {
        self.model.encoder.as_ref().map_or(0, |parts| parts.types)
    }

    /// Gives the labels numbers for names where the configuration has none: as many as the head has rows.
    pub(super) fn name_labels(&mut self, rows: Option<usize>) {
        if self.task.is_some() && self.labels.is_empty() {
            self.labels = (0..rows.unwrap_or(2)).map(|label| format!("LABEL_{label}")).collect();
        }
        if let Some(parts) = &mut self.model.encoder {
            parts.labels = self.labels.len();
        }
    }

    /// Reads the object of a `config.json`, the labels from `head` if they are elsewhere.
    fn read(file: &Path, map: &Map<String, Value>, head: Option<&Config<'_>>) -> Result<EncoderSpec> {
        let c = Config::new(file, map);
        IGNORED.iter().for_each(|key| {
            c.raw(key);
        });
        let kind: String = c.or("model_type", String::new())?;
        let Some(family) = of_kind(&kind) else {
            let known = ENCODERS.map(|family| family.model_type).join(", ");
            return Err(c.refuse("model_type", format!("is \"{kind}\"; encoders are supported of: {known}")));
        };
        let mut model = blocks(&c, family)?;
        let labels = labels(head.unwrap_or(&c))?;
        let task = Task::read(head.unwrap_or(&c), labels.len())?;
        let sigmoid = ranks_by_sigmoid(file, map)?;
        let mut spec = if head.is_some() {
            model.family = if family == &DEBERTA { &CUSTOM_DEBERTA } else { &CUSTOM_BERT };
            EncoderSpec { model, labels, task: Some(task), sigmoid }
        } else if has_head(&c, family)? {
            c.finish(family.model_type)?;
            return Ok(EncoderSpec { model, labels, task: Some(task), sigmoid });
        } else {
            EncoderSpec { model, labels: Vec::new(), task: None, sigmoid }
        };
        spec.model.encoder.iter_mut().for_each(|parts| parts.pool = None);
        c.finish(family.model_type)?;
        Ok(spec)
    }
}

/// The family with this `model_type`.
fn of_kind(kind: &str) -> Option<&'static Family> {
    ENCODERS.into_iter().find(|family| family.model_type == kind)
}

/// Whether the architecture has a classification head; it has one where the configuration names none.
fn has_head(c: &Config<'_>, family: &Family) -> Result<bool> {
    let classes: Vec<String> = c.or("architectures", Vec::new())?;
    let stem = family.architecture.trim_end_matches("ForSequenceClassification");
    let bare = ["Model", "ForMaskedLM", "ForPreTraining"].map(|end| format!("{stem}{end}"));
    if let Some(other) = classes.iter().find(|name| *name != family.architecture && !bare.contains(name)) {
        let (known, kind) = (bare.join(", "), family.model_type);
        let what = format!("is {other}; supported for {kind}: {}, {known}", family.architecture);
        return Err(c.refuse("architectures", what));
    }
    Ok(!classes.iter().any(|name| bare.contains(name)))
}

/// The architecture of a configuration.
pub(super) fn read_blocks(c: &Config<'_>) -> Result<Spec> {
    let kind: String = c.or("model_type", String::new())?;
    let family = of_kind(&kind).ok_or_else(|| c.refuse("model_type", "is none of an encoder"))?;
    blocks(c, family)
}

fn blocks(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    let mut spec = common(c, family)?;
    match family.model_type {
        "bert" => {}
        "deberta-v2" => deberta(c, &mut spec)?,
        _ => roberta(c, &mut spec)?,
    }
    Ok(spec)
}

/// What all of them have.
fn common(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    c.only("is_decoder", "false")?;
    c.only("position_embedding_type", "\"absolute\"")?;
    let (hidden, heads) = (c.size("hidden_size")?, c.size("num_attention_heads")?);
    if hidden % heads != 0 {
        let what = format!("is {heads}, which does not divide the hidden size {hidden}");
        return Err(c.refuse("num_attention_heads", what));
    }
    let (head_dim, deberta) = (hidden / heads, family == &DEBERTA);
    let eps = c.eps("layer_norm_eps", if deberta { 1e-7 } else { 1e-12 })?;
    let layer = LayerSpec { mixer: Mixer::Attention { reach: Reach::Full, rope: None }, ffn: Some(Ffn::Mlp) };
    let layers = vec![layer; c.layers("num_hidden_layers")?];
    let (ffn, vocab) = (c.size("intermediate_size")?, c.size("vocab_size")?);
    let rows = c.size("max_position_embeddings")?;
    let types = c.count("type_vocab_size", if deberta { 0 } else { 2 }, 0..=MAX_SIZE)?;
    let activation = c.activation("hidden_act", "gelu")?;
    let parts =
        EncoderParts { first_position: 0, types, relative: None, pool: Some(Activation::Tanh), labels: 0 };
    Ok(Spec {
        family,
        hidden,
        vocab,
        heads,
        kv_heads: heads,
        head_dim,
        ffn,
        norm: NormKind { centred: true, plus_one: false, round_first: false, eps },
        norm_bias: true,
        residual: Residual::Sum,
        qk_norm: QkNorm::None,
        latent: None,
        sinks: false,
        bias: Biases { qkv: true, attn_out: true, mlp: true },
        mlp: Mlp { activation, gated: false },
        moe: None,
        attention_scale: (head_dim as f64).powf(-0.5) as f32,
        attention_softcap: 0.0,
        layers,
        ropes: Vec::new(),
        rereads: false,
        learned_positions: Some(rows),
        embed_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        logit_softcap: 0.0,
        tied: false,
        head_bias: true,
        scores: 0,
        padding: None,
        projections: None,
        max_positions: rows,
        encoder: Some(parts),
        adapter: None,
    })
}

fn roberta(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    let first = 1 + c.count("pad_token_id", 1, 0..=MAX_SIZE)?;
    let rows = spec.max_positions;
    if first >= rows {
        let what = format!("is {}, beyond the {rows} rows of the position table", first - 1);
        return Err(c.refuse("pad_token_id", what));
    }
    spec.encoder.iter_mut().for_each(|parts| parts.first_position = first);
    Ok(())
}

fn deberta(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    c.only("conv_kernel_size", "0")?;
    c.only("embedding_size", &spec.hidden.to_string())?;
    c.only("pooler_hidden_size", &spec.hidden.to_string())?;
    c.only("attention_head_size", &spec.head_dim.to_string())?;
    let pool = Some(c.activation("pooler_hidden_act", "gelu")?);
    let rows = spec.max_positions;
    if !c.or("position_biased_input", true)? {
        spec.learned_positions = None;
    }
    let terms = terms(c)?;
    let [buckets, distances] = ["position_buckets", "max_relative_positions"].map(|key| c.or(key, -1i64));
    let (buckets, distances) =
        (usize::try_from(buckets?).unwrap_or(0), usize::try_from(distances?).unwrap_or(0));
    let max_distance = if distances == 0 { rows } else { distances };
    let span = if buckets == 0 { max_distance } else { buckets };
    let normed: String = c.or("norm_rel_ebd", "none".to_owned())?;
    let shared = c.or("share_att_key", false)?;
    let relative: bool = c.or("relative_attention", false)?;
    if buckets > 0 && (buckets / 2 < 1 || max_distance <= buckets / 2 + 1) {
        let what =
            format!("is {buckets}: half of them must be less than the {max_distance} distances, and not 0");
        return Err(c.refuse("position_buckets", what));
    }
    let normed = normed.to_lowercase().split('|').any(|part| part.trim() == "layer_norm");
    let has = |term: &str| terms.iter().any(|known| known == term);
    let (c2p, p2c) = (has("c2p"), has("p2c"));
    if !relative && (c2p || p2c) {
        let what = "names terms, but `relative_attention` is false; remove them, or set that key to true";
        return Err(c.refuse("pos_att_type", what));
    }
    if relative {
        let terms = 1 + usize::from(c2p) + usize::from(p2c);
        spec.attention_scale = 1.0 / ((spec.head_dim * terms) as f32).sqrt();
    }
    let distances = Distances { span, buckets: buckets > 0, max_distance };
    let relative = relative.then_some(Relative { distances, c2p, p2c, shared, normed });
    spec.encoder.iter_mut().for_each(|parts| (parts.relative, parts.pool) = (relative, pool));
    Ok(())
}

/// `pos_att_type`: a list, or names with bars between.
fn terms(c: &Config<'_>) -> Result<Vec<String>> {
    let terms: Vec<String> = match c.raw("pos_att_type") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.split('|').map(|term| term.trim().to_lowercase()).collect(),
        Some(list) => c.parse("pos_att_type", list)?,
    };
    match terms.iter().find(|term| !["c2p", "p2c", ""].contains(&term.as_str())) {
        Some(other) => Err(c.refuse("pos_att_type", format!("holds \"{other}\"; supported: c2p, p2c"))),
        None => Ok(terms),
    }
}

/// `id2label`, in the order of ids; none if the configuration names none.
fn labels(c: &Config<'_>) -> Result<Vec<String>> {
    let named: BTreeMap<String, String> = c.or("id2label", BTreeMap::new())?;
    let label = |id: usize| {
        let name = named.get(&id.to_string()).cloned();
        name.ok_or_else(|| c.refuse("id2label", format!("has {} labels and none for {id}", named.len())))
    };
    (0..named.len()).map(label).collect()
}
