//! Multimodal models around a family's text model. Only the text part is read from their folders, as a model of its
//! family, and it is written as one.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::error::Result;

/// Key of the text part's configuration.
pub(super) const TEXT: &str = "text_config";

/// A model around a text model.
#[derive(Clone, Copy, Debug)]
pub struct Wrapper {
    /// Hugging Face `model_type`.
    pub model_type: &'static str,
    /// Transformers' class.
    pub architecture: &'static str,
    /// `model_type` of the text part.
    pub text: &'static str,
    /// Sizes omitted from published files, with Transformers' defaults.
    pub defaults: &'static [(&'static str, usize)],
    /// Default of `tie_word_embeddings`.
    pub tied: bool,
    /// Keys next to the text part's that do not affect it.
    pub outer_keys: &'static [&'static str],
    /// Prefixes of the text part's tensor names, and their replacements in a folder of the text part alone.
    pub prefixes: &'static [(&'static str, &'static str)],
    /// Prefixes of the other parts' tensor names.
    pub others: &'static [&'static str],
}

impl Wrapper {
    /// The text part's configuration, as in a folder of its own.
    ///
    /// # Errors
    /// If it is missing or of another family, or a key next to it is unknown.
    pub(crate) fn text_config(&self, file: &Path, map: &Map<String, Value>) -> Result<Map<String, Value>> {
        let config = Config::new(file, map);
        let architectures: Vec<String> = config.or("architectures", Vec::new())?;
        if let Some(other) = architectures.iter().find(|name| *name != self.architecture) {
            let what = format!("is {other}; supported for {}: {}", self.model_type, self.architecture);
            return Err(config.refuse("architectures", what));
        }
        let Some(text) = config.raw(TEXT) else { return Err(config.refuse(TEXT, "is missing")) };
        let mut text: Map<String, Value> = config.parse(TEXT, text)?;
        if text.entry("model_type").or_insert(json!(self.text)) != self.text {
            let what = format!("is {}; supported: \"{}\"", text["model_type"], self.text);
            return Err(config.refuse(format!("{TEXT}.model_type"), what));
        }
        // Written by some versions; they name no class with a head.
        text.remove("architectures");
        // The outer key takes precedence.
        text.insert("tie_word_embeddings".into(), json!(config.or("tie_word_embeddings", self.tied)?));
        for (key, size) in self.defaults {
            text.entry(*key).or_insert(json!(size));
        }
        for key in self.outer_keys {
            config.raw(key);
        }
        config.finish(self.model_type)?;
        Ok(text)
    }

    /// A tensor's name in a folder of the text part alone; `None` for other parts.
    pub(crate) fn name(&self, stored: &str) -> Option<String> {
        let replaced = self
            .prefixes
            .iter()
            .find_map(|(prefix, own)| stored.strip_prefix(prefix).map(|rest| format!("{own}{rest}")));
        let other = || self.others.iter().any(|prefix| stored.starts_with(prefix));
        replaced.or_else(|| (!other()).then(|| stored.to_string()))
    }
}
