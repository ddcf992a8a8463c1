//! What a `config.json` says of an encoder.

use std::collections::BTreeMap;
use std::path::Path;

use fathom_tensor::{Activation, NormKind};
use serde_json::{Map, Value};

use crate::config::{Config, MAX_SIZE};
use crate::error::{Error, Result};
use crate::files::json::read_object;

/// An encoder with a classification head.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// Hugging Face `model_type`.
    pub family: &'static str,
    /// What the names of the encoder's weights begin with.
    pub prefix: &'static str,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads.
    pub heads: usize,
    /// Columns inside the MLP.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Positions that are added to the embedding.
    pub positions: Option<Positions>,
    /// Rows of the table of token types; 0 for none. Every token is of the first type.
    pub types: usize,
    /// LayerNorm.
    pub norm: NormKind,
    /// Inside the MLP.
    pub activation: Activation,
    /// Positions in the scores of attention.
    pub relative: Option<Relative>,
    /// Between the first token's hidden state and the last projection.
    pub pool: Pool,
    /// What the classes are called.
    pub labels: Vec<String>,
    /// What the logits are.
    pub task: Task,
}

/// A learned position table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Its rows.
    pub rows: usize,
    /// The row of a text's first token: 0, or behind the row of padding (RoBERTa).
    pub first: usize,
}

/// Disentangled attention: scores have terms by distance (DeBERTa).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    /// Half the rows of the table of distances.
    pub span: usize,
    /// Distances beyond half of `span` share rows by their logarithm.
    pub buckets: bool,
    /// Distance at which the logarithm ends.
    pub max_distance: usize,
    /// Content meets the position of the key.
    pub c2p: bool,
    /// The key's content meets the position of the query.
    pub p2c: bool,
    /// Positions go through the projections of content.
    pub shared: bool,
    /// The table of distances is normalised.
    pub normed: bool,
}

/// What is done with the first token's hidden state before the last projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// A projection and tanh, stored under this name, with the last projection's name.
    Tanh(&'static str, &'static str),
    /// A projection and an activation.
    Activated(&'static str, Activation, &'static str),
    /// Nothing.
    Plain(&'static str),
}

/// What the logits of the labels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// One label is true: softmax.
    OneOf,
    /// Each may be true: sigmoid.
    EachOf,
    /// Numbers, as they are.
    Number,
}

/// Keys that published configurations have and that change nothing here.
const IGNORED: [&str; 13] = [
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

    /// Whether a configuration is an encoder's: what other readers are not for.
    pub(crate) fn claims(map: &Map<String, Value>) -> bool {
        let kind = map.get("model_type").and_then(Value::as_str);
        kind.map_or(map.contains_key("base_model"), |kind| KINDS.contains(&kind))
    }

    /// Texts may have so many tokens; `None` for any number.
    pub fn max_tokens(&self) -> Option<usize> {
        self.positions.map(|positions| positions.rows - positions.first)
    }

    /// Reads the object of a `config.json`, the labels from `head` if they are elsewhere.
    fn read(file: &Path, map: &Map<String, Value>, head: Option<&Config<'_>>) -> Result<EncoderSpec> {
        let c = Config::new(file, map);
        IGNORED.iter().for_each(|key| {
            c.raw(key);
        });
        let kind: String = c.or("model_type", String::new())?;
        let Some(family) = KINDS.into_iter().find(|known| *known == kind) else {
            let what = format!("is \"{kind}\"; encoders are supported of: {}", KINDS.join(", "));
            return Err(c.refuse("model_type", what));
        };
        let mut spec = common(&c, family)?;
        match family {
            "bert" => {}
            "deberta-v2" => deberta(&c, &mut spec)?,
            _ => roberta(&c, &mut spec)?,
        }
        if head.is_some() {
            (spec.prefix, spec.pool) = ("model.", Pool::Plain("fc"));
        } else {
            let class = match family {
                "bert" => "BertForSequenceClassification",
                "roberta" => "RobertaForSequenceClassification",
                "xlm-roberta" => "XLMRobertaForSequenceClassification",
                _ => "DebertaV2ForSequenceClassification",
            };
            let classes: Vec<String> = c.or("architectures", Vec::new())?;
            if let Some(other) = classes.iter().find(|name| *name != class) {
                let what = format!("is {other}; supported for {family}: {class}");
                return Err(c.refuse("architectures", what));
            }
        }
        spec.labels = labels(head.unwrap_or(&c))?;
        spec.task = task(head.unwrap_or(&c))?;
        c.finish(family)?;
        Ok(spec)
    }
}

/// `model_type`s of encoders.
const KINDS: [&str; 4] = ["bert", "deberta-v2", "roberta", "xlm-roberta"];

/// What all of them have, with BERT's names.
fn common(c: &Config<'_>, family: &'static str) -> Result<EncoderSpec> {
    c.only("is_decoder", "false")?;
    c.only("position_embedding_type", "\"absolute\"")?;
    let (hidden, heads) = (c.size("hidden_size")?, c.size("num_attention_heads")?);
    if hidden % heads != 0 {
        let what = format!("is {heads}, which does not divide the hidden size {hidden}");
        return Err(c.refuse("num_attention_heads", what));
    }
    let deberta = family == "deberta-v2";
    let eps = c.eps("layer_norm_eps", if deberta { 1e-7 } else { 1e-12 })?;
    Ok(EncoderSpec {
        family,
        prefix: "bert.",
        hidden,
        layers: c.layers("num_hidden_layers")?,
        heads,
        ffn: c.size("intermediate_size")?,
        vocab: c.size("vocab_size")?,
        positions: Some(Positions { rows: c.size("max_position_embeddings")?, first: 0 }),
        types: c.count("type_vocab_size", if deberta { 0 } else { 2 }, 0..=MAX_SIZE)?,
        norm: NormKind { centred: true, plus_one: false, round_first: false, eps },
        activation: c.activation("hidden_act", "gelu")?,
        relative: None,
        pool: Pool::Tanh("bert.pooler.dense", "classifier"),
        labels: Vec::new(),
        task: Task::OneOf,
    })
}

fn roberta(c: &Config<'_>, spec: &mut EncoderSpec) -> Result<()> {
    spec.prefix = "roberta.";
    spec.pool = Pool::Tanh("classifier.dense", "classifier.out_proj");
    let first = 1 + c.count("pad_token_id", 1, 0..=MAX_SIZE)?;
    let rows = spec.positions.map_or(0, |positions| positions.rows);
    if first >= rows {
        let what = format!("is {}, beyond the {rows} rows of the position table", first - 1);
        return Err(c.refuse("pad_token_id", what));
    }
    spec.positions = Some(Positions { rows, first });
    Ok(())
}

fn deberta(c: &Config<'_>, spec: &mut EncoderSpec) -> Result<()> {
    let head_dim = spec.hidden / spec.heads;
    c.only("conv_kernel_size", "0")?;
    c.only("embedding_size", &spec.hidden.to_string())?;
    c.only("pooler_hidden_size", &spec.hidden.to_string())?;
    c.only("attention_head_size", &head_dim.to_string())?;
    spec.prefix = "deberta.";
    spec.pool = Pool::Activated("pooler.dense", c.activation("pooler_hidden_act", "gelu")?, "classifier");
    let rows = spec.positions.map_or(0, |positions| positions.rows);
    if !c.or("position_biased_input", true)? {
        spec.positions = None;
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
    spec.relative =
        relative.then_some(Relative { span, buckets: buckets > 0, max_distance, c2p, p2c, shared, normed });
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

/// `problem_type`; without it one label is a number and several exclude each other.
fn task(c: &Config<'_>) -> Result<Task> {
    let kind: Option<String> = c.nullable("problem_type", None)?;
    match kind.as_deref() {
        None if labels(c)?.len() == 1 => Ok(Task::Number),
        None | Some("single_label_classification") => Ok(Task::OneOf),
        Some("multi_label_classification") => Ok(Task::EachOf),
        Some("regression") => Ok(Task::Number),
        Some(other) => {
            let known = "regression, single_label_classification, multi_label_classification";
            Err(c.refuse("problem_type", format!("is \"{other}\"; supported: {known}")))
        }
    }
}
