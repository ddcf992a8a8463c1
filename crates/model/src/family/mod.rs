//! Families: conversion of a `config.json` to a [`Spec`] and back, and each family's weight names. Data only; the
//! block that all of them share is in `block.rs`.

mod bamba;
mod bloom;
mod cohere2;
mod common;
mod deepseek;
mod deepseek_v2;
mod deepseek_v3;
mod delta;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod glm4;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mamba;
mod mamba2;
mod mistral;
mod mixtral;
mod moe;
mod mpt;
mod nemotron;
mod nemotron_h;
mod olmo2;
mod olmo_hybrid;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod retro;
mod smollm3;
mod starcoder2;
mod t5;
mod wrapper;

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::encoder::{self, EncoderSpec};
use crate::error::{Error, Result};
use crate::spec::{Family, Moe, Spec, head_columns_refused};

pub(crate) use common::activation_name;
pub use t5::TARGET_START;
pub use wrapper::Wrapper;

/// All families, by `model_type`.
pub static FAMILIES: [&Family; 42] = [
    &bamba::FAMILY,
    &bloom::FAMILY,
    &cohere2::FAMILY,
    &deepseek_v2::FAMILY,
    &deepseek_v3::FAMILY,
    &falcon::FAMILY,
    &falcon_h1::FAMILY,
    &gemma::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &glm::FAMILY,
    &glm4::FAMILY,
    &gpt2::FAMILY,
    &gpt_neox::FAMILY,
    &gpt_oss::FAMILY,
    &granite::FAMILY,
    &granite_hybrid::FAMILY,
    &lfm2::FAMILY,
    &lfm2_moe::FAMILY,
    &llama::FAMILY,
    &mamba2::FAMILY,
    &mistral::FAMILY,
    &mixtral::FAMILY,
    &mpt::FAMILY,
    &nemotron::FAMILY,
    &nemotron_h::FAMILY,
    &olmo2::FAMILY,
    &olmo_hybrid::FAMILY,
    &phi::FAMILY,
    &phi3::FAMILY,
    &qwen2::FAMILY,
    &qwen2_moe::FAMILY,
    &qwen3::FAMILY,
    &qwen3_5::DENSE,
    &qwen3_5::EXPERTS,
    &qwen3_moe::FAMILY,
    &qwen3_next::FAMILY,
    &retro::FAMILY,
    &smollm3::FAMILY,
    &starcoder2::FAMILY,
    &t5::FAMILY,
    &t5::UMT5,
];

/// All wrappers around a family's model.
static WRAPPERS: [&Wrapper; 3] = [&gemma3::WRAPPER, &qwen3_5::DENSE_WRAPPER, &qwen3_5::EXPERTS_WRAPPER];

impl Family {
    /// The family with this `model_type`.
    pub fn find(model_type: &str) -> Option<&'static Family> {
        FAMILIES.into_iter().find(|family| family.model_type == model_type)
    }

    /// The family with this `model_type`.
    ///
    /// # Panics
    /// If there is none among [`FAMILIES`].
    #[track_caller]
    pub fn named(model_type: &str) -> &'static Family {
        Family::find(model_type).unwrap_or_else(|| panic!("no family is called {model_type:?}"))
    }

    /// Reads the object of a `config.json`; `file` is for messages.
    ///
    /// # Errors
    /// Names the key that is missing, unknown, or has a value that is not supported.
    pub fn read(file: &Path, map: &Map<String, Value>) -> Result<Spec> {
        if let Some(wrapper) = Wrapper::of(map) {
            return wrapper.read(file, map);
        }
        let config = Config::new(file, map);
        if EncoderSpec::claims(map) {
            return encoder::whole(&config);
        }
        let model_type: String = config
            .nullable("model_type", None)?
            .ok_or_else(|| config.refuse("model_type", "is missing; is this a config.json?"))?;
        let Some(family) = Family::find(&model_type) else {
            let mut known = FAMILIES.map(|family| family.model_type).to_vec();
            known.extend(WRAPPERS.map(|wrapper| wrapper.model_type));
            known.sort_unstable();
            let known = known.join(", ");
            return Err(config.refuse("model_type", format!("is \"{model_type}\"; supported: {known}")));
        };
        family.parse(&config)
    }

    /// Reads a configuration of this family.
    ///
    /// # Errors
    /// Those of [`Family::read`].
    pub fn parse(&'static self, config: &Config<'_>) -> Result<Spec> {
        let Family { model_type, architecture, .. } = self;
        let architectures: Vec<String> = config.or("architectures", Vec::new())?;
        let classifier = self.classifier();
        let classifies =
            !architectures.is_empty() && architectures.iter().all(|name| Some(name) == classifier.as_ref());
        // Published folders of MPT have another case.
        let other = architectures.iter().find(|name| !name.eq_ignore_ascii_case(architecture));
        if let Some(other) = other.filter(|_| !classifies) {
            let known = [Some(architecture.to_string()), classifier];
            let known = known.into_iter().flatten().collect::<Vec<_>>().join(", ");
            let what = format!("is {other}; supported for {model_type}: {known}");
            return Err(config.refuse("architectures", what));
        }
        let mut spec = (self.read)(config, self)?;
        if classifies {
            spec = spec.scoring(labels(config)?);
        }
        config.finish(model_type)?;
        if let Some(what) = head_columns_refused(spec.head_dim) {
            return Err(config.refuse("head_dim", what));
        }
        spec.check().map_err(|(keys, what)| config.refuse(config.present(keys), what))?;
        Ok(spec)
    }

    /// Transformers' class with a score head instead of the vocabulary's, of a family that has one.
    fn classifier(&self) -> Option<String> {
        let stems = ["ForCausalLM", "LMHeadModel"].map(|end| self.architecture.strip_suffix(end));
        let stem = stems.into_iter().flatten().next()?;
        Some(format!("{stem}ForSequenceClassification"))
    }

    /// The object of a `config.json` that both Transformers 4 and 5 load (only 5 where 4 has no keys), without token
    /// ids and dtype.
    ///
    /// # Errors
    /// If the family's configuration cannot express the specification; `file` is for messages.
    pub fn write(file: &Path, spec: &Spec) -> Result<Map<String, Value>> {
        let family = spec.family;
        let mut map = Map::new();
        map.insert("architectures".into(), json!([family.architecture]));
        map.insert("model_type".into(), json!(family.model_type));
        (family.write)(spec, &mut map);
        let labels = spec.scores.max(spec.encoder.as_ref().map_or(0, |parts| parts.head.labels()));
        if spec.scores > 0 {
            map.insert("architectures".into(), json!([family.classifier()]));
        }
        if labels > 0 {
            let name = |label: usize| format!("LABEL_{label}");
            let names: Map<String, Value> =
                (0..labels).map(|label| (label.to_string(), json!(name(label)))).collect();
            let labels: Map<String, Value> = (0..labels).map(|label| (name(label), json!(label))).collect();
            map.insert("id2label".into(), Value::Object(names));
            map.insert("label2id".into(), Value::Object(labels));
        }
        let wanted = Spec { moe: spec.moe.clone().map(Moe::untrained), padding: None, ..spec.clone() };
        let read = if spec.encoder.is_some() {
            Family::read(file, &map)
        } else {
            family.parse(&Config::new(file, &map))
        };
        match read {
            Ok(read) if read == wanted => Ok(map),
            Ok(read) => {
                let what =
                    format!("a {} configuration cannot express {}", spec.family, differing(spec, &read));
                Err(Error::file(file, what))
            }
            Err(error) => Err(error),
        }
    }
}

impl Wrapper {
    /// The wrapper of a configuration, if any.
    pub(crate) fn of(map: &Map<String, Value>) -> Option<&'static Wrapper> {
        let model_type = map.get("model_type")?;
        WRAPPERS.into_iter().find(|wrapper| *model_type == wrapper.model_type)
    }

    /// Reads the text part.
    pub(super) fn read(&self, file: &Path, map: &Map<String, Value>) -> Result<Spec> {
        let text = self.text_config(file, map)?;
        Family::read(file, &text).map_err(|error| match error {
            Error::Config { file, key, what } => {
                Error::Config { file, key: format!("{}.{key}", wrapper::TEXT), what }
            }
            other => other,
        })
    }
}

/// The first field in which a specification differs from the one that its configuration gives.
fn differing(wanted: &Spec, read: &Spec) -> String {
    let [wanted, read] = [wanted, read].map(|spec| format!("{spec:?}"));
    match wanted.split(", ").zip(read.split(", ")).find(|(own, other)| own != other) {
        // For a nested field, its own name and value.
        Some((own, other)) => {
            let [own, other] = [own, other].map(|text| text.rsplit_once("{ ").map_or(text, |(_, last)| last));
            format!("`{own}`, which would be read as `{other}`")
        }
        None => "all of it".into(),
    }
}

/// Number of a classifier's scores: that of its labels, by default two.
fn labels(config: &Config<'_>) -> Result<usize> {
    let named = config.raw("id2label").and_then(Value::as_object).map(Map::len);
    let labels: Option<usize> = config.nullable("num_labels", None)?;
    match named.or(labels).unwrap_or(2) {
        0 => Err(config.refuse("id2label", "names no label")),
        labels => Ok(labels),
    }
}
