//! Reads an encoder's `config.json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::families::{CUSTOM_BERT, CUSTOM_DEBERTA, DEBERTA, DEBERTA_NEW, ENCODERS};
use super::read::{blocks, with_head};
use super::task::{Task, ranks_by_sigmoid};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::json::read_object;
use crate::spec::{EncoderHead, Family, Spec};

/// Configuration of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// The architecture.
    pub model: Spec,
    /// Names of the classes; empty without a classification head.
    pub labels: Vec<String>,
    /// Meaning of the logits; `None` without a head.
    pub task: Option<Task>,
    /// Whether a ranking logit goes through a sigmoid, if configured.
    sigmoid: Option<bool>,
}

/// Keys of published configurations that change nothing here.
const IGNORED: [&str; 15] = [
    "output_past",
    // From Sentence-Transformers; see `Task`.
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "tie_word_embeddings",
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
    /// Reads the configuration of a folder. Folders of NVIDIA's classifiers name a `base_model` instead of an
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

    /// Returns whether a folder's configuration is an encoder's, supported or not.
    pub fn is_of(folder: &Path) -> bool {
        read_object(&folder.join("config.json")).is_ok_and(|map| EncoderSpec::claims(&map))
    }

    /// Returns whether a configuration is an encoder's, which other readers refuse.
    pub(crate) fn claims(map: &Map<String, Value>) -> bool {
        let kind = map.get("model_type").and_then(Value::as_str);
        kind.map_or(map.contains_key("base_model"), |kind| of_kind(kind).is_some())
    }

    /// Most tokens of a text; `None` if unlimited.
    pub fn max_tokens(&self) -> Option<usize> {
        self.model.position_room()
    }

    /// The position of a text's first token.
    pub fn first_position(&self) -> usize {
        self.model.first_position()
    }

    /// Returns whether the ranking logit goes through a sigmoid: as configured, otherwise if it is the only one, as
    /// in Sentence-Transformers.
    pub fn ranks_by_sigmoid(&self) -> bool {
        self.sigmoid.unwrap_or(self.labels.len() == 1)
    }

    /// Rows of the token type table.
    pub fn types(&self) -> usize {
        self.model.encoder.as_ref().map_or(0, |parts| parts.types)
    }

    /// Names labels by number if the configuration has no names, one per row of the head.
    pub(super) fn name_labels(&mut self, rows: Option<usize>) {
        if self.task.is_some() && self.labels.is_empty() {
            self.labels = (0..rows.unwrap_or(2)).map(|label| format!("LABEL_{label}")).collect();
        }
        if let (Some(_), Some(parts)) = (self.task, &mut self.model.encoder) {
            parts.head = EncoderHead::Text(self.labels.len());
        }
    }

    /// Reads the object of a `config.json`; labels come from `head` if that is given. Serving needs labels of texts or
    /// none, and no masked-language head.
    fn read(file: &Path, map: &Map<String, Value>, head: Option<&Config<'_>>) -> Result<EncoderSpec> {
        let c = Config::new(file, map);
        let family = family(&c)?;
        let model = blocks(&c, family)?;
        let found = class(&c, family)?;
        let labels = labels(head.unwrap_or(&c))?;
        let task = Task::read(head.unwrap_or(&c), labels.len())?;
        let sigmoid = ranks_by_sigmoid(file, map)?;
        c.finish(family.model_type)?;
        if let Some(EncoderHead::Tokens(_)) = found {
            let what = "names a class with labels of tokens, which is trained and not served; served are labels of texts, vectors and scores";
            return Err(c.refuse("architectures", what));
        }
        let count = labels.len();
        let (labels, task, wanted) = match (head, found) {
            (None, Some(EncoderHead::None | EncoderHead::Masked)) => (Vec::new(), None, EncoderHead::None),
            _ => (labels, Some(task), EncoderHead::Text(count)),
        };
        let mut model = with_head(model, wanted);
        if head.is_some() {
            model.family = if family == &DEBERTA { &CUSTOM_DEBERTA } else { &CUSTOM_BERT };
            model.encoder.iter_mut().for_each(|parts| parts.pool = None);
        }
        Ok(EncoderSpec { model, labels, task, sigmoid })
    }
}

/// The architecture of a configuration with the head that it names, of labels by default.
pub(crate) fn whole(c: &Config<'_>) -> Result<Spec> {
    let family = family(c)?;
    let model = blocks(c, family)?;
    let (head, labels) = (class(c, family)?, labels(c)?.len());
    Task::read(c, labels)?;
    let counted = if labels == 0 { c.size_or("num_labels", Some(2))? } else { labels };
    let head = match head {
        None | Some(EncoderHead::Text(_)) => EncoderHead::Text(counted),
        Some(EncoderHead::Tokens(_)) => EncoderHead::Tokens(counted),
        Some(bare) => bare,
    };
    c.finish(family.model_type)?;
    let mut model = with_head(model, head);
    let own = family.names.encoder.is_some_and(|names| !names.own_head.is_empty());
    if head == EncoderHead::Masked && own {
        model.tied = c.or("tie_word_embeddings", true)?;
    }
    Ok(model)
}

/// The family of a configuration, with the keys that change nothing marked as read.
fn family(c: &Config<'_>) -> Result<&'static Family> {
    IGNORED.iter().for_each(|key| {
        c.raw(key);
    });
    let kind: String = c.or("model_type", String::new())?;
    if kind == DEBERTA.model_type && !c.or("legacy", true)? {
        return Ok(&DEBERTA_NEW);
    }
    of_kind(&kind).ok_or_else(|| {
        let known = ENCODERS.map(|family| family.model_type).join(", ");
        c.refuse("model_type", format!("is \"{kind}\"; encoders are supported of: {known}"))
    })
}

/// The family with this `model_type`.
fn of_kind(kind: &str) -> Option<&'static Family> {
    ENCODERS.into_iter().find(|family| family.model_type == kind)
}

/// Ends of Transformers' names of classes, and the heads that they have.
const CLASSES: [(&str, EncoderHead); 5] = [
    ("Model", EncoderHead::None),
    ("ForMaskedLM", EncoderHead::Masked),
    ("ForPreTraining", EncoderHead::Masked),
    ("ForSequenceClassification", EncoderHead::Text(0)),
    ("ForTokenClassification", EncoderHead::Tokens(0)),
];

/// The head of the first class that a configuration names; `None` if it names none.
fn class(c: &Config<'_>, family: &Family) -> Result<Option<EncoderHead>> {
    let named: Vec<String> = c.or("architectures", Vec::new())?;
    let stem = family.architecture.trim_end_matches("ForSequenceClassification");
    // ELECTRA's pretraining model tells words that were replaced.
    let head = |name: &String| {
        let (end, head) = CLASSES.into_iter().find(|(end, _)| *name == format!("{stem}{end}"))?;
        let tells = family.model_type == "electra" && end == "ForPreTraining";
        Some(if tells { EncoderHead::None } else { head })
    };
    match named.iter().find(|name| head(name).is_none()) {
        Some(other) => {
            let known = CLASSES.map(|(end, _)| format!("{stem}{end}")).join(", ");
            let kind = family.model_type;
            Err(c.refuse("architectures", format!("is {other}; supported for {kind}: {known}")))
        }
        None => Ok(named.first().and_then(head)),
    }
}

/// `id2label` in the order of ids; empty if absent.
fn labels(c: &Config<'_>) -> Result<Vec<String>> {
    let named: BTreeMap<String, String> = c.or("id2label", BTreeMap::new())?;
    let label = |id: usize| {
        let name = named.get(&id.to_string()).cloned();
        name.ok_or_else(|| c.refuse("id2label", format!("has {} labels and none for {id}", named.len())))
    };
    (0..named.len()).map(label).collect()
}
