//! Reading `config.json`: every key is read by the family or known to be harmless, everything else is refused by name.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use fathom_tensor::Activation;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A configuration that remembers which of its keys were read.
pub struct Config<'a> {
    file: &'a Path,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'static str>>,
}

/// Largest size in a configuration; the product of two still fits.
pub(crate) const MAX_SIZE: usize = 1 << 28;
/// Largest number of layers.
const MAX_LAYERS: usize = 4096;

/// Keys without influence on what a model computes in evaluation: book-keeping, training-only settings (dropout
/// included), and defaults of generation, which `generation_config.json` overrides.
const HARMLESS: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "embedding_dropout",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Keys of any family that may be present with these values only.
const ONLY: &[(&str, &str)] = &[
    ("add_cross_attention", "false"),
    ("cross_attention_hidden_size", "null"),
    ("is_encoder_decoder", "false"),
    ("pretraining_tp", "1"),
    ("pruned_heads", "{}"),
    ("quantization_config", "null"),
    ("rope_interleaved", "false"),
    ("tie_encoder_decoder", "false"),
    ("use_mrope", "false"),
];

impl<'a> Config<'a> {
    /// The object of a `config.json`; `file` is for messages.
    pub fn new(file: &'a Path, map: &'a Map<String, Value>) -> Config<'a> {
        Config { file, map, read: RefCell::default() }
    }

    /// An error about a key.
    pub fn refuse(&self, key: impl Into<String>, what: impl Into<String>) -> Error {
        Error::config(self.file, key, what)
    }

    /// The raw value; `None` if absent. Counts as read.
    pub fn raw(&self, key: &'static str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key);
        self.map.get(key)
    }

    /// The value, or `default` if the key is absent; `null` is `None`.
    pub fn nullable<T: DeserializeOwned>(&self, key: &'static str, default: Option<T>) -> Result<Option<T>> {
        match self.raw(key) {
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(value) => self.parse(key, value).map(Some),
        }
    }

    /// The value, or `default` if the key is absent or `null`.
    pub fn or<T: DeserializeOwned>(&self, key: &'static str, default: T) -> Result<T> {
        Ok(self.nullable(key, None)?.unwrap_or(default))
    }

    /// A size: from 1 up to a limit that keeps products of two within range.
    pub fn size(&self, key: &'static str) -> Result<usize> {
        self.size_or(key, None)
    }

    /// A size, or `default` if the key is absent or `null`.
    pub fn size_or(&self, key: &'static str, default: Option<usize>) -> Result<usize> {
        let size = self.nullable(key, None)?.or(default).ok_or_else(|| self.refuse(key, "is missing"))?;
        if (1..=MAX_SIZE).contains(&size) {
            return Ok(size);
        }
        Err(self.refuse(key, format!("is {size}; sizes are 1 to {MAX_SIZE}")))
    }

    /// A count from `range`, or `default` if the key is absent or `null`.
    pub fn count(&self, key: &'static str, default: usize, range: RangeInclusive<usize>) -> Result<usize> {
        match self.or(key, default)? {
            count if range.contains(&count) => Ok(count),
            count => {
                let what = format!("is {count}; {} to {} are supported", range.start(), range.end());
                Err(self.refuse(key, what))
            }
        }
    }

    /// The epsilon of norms.
    pub fn eps(&self, key: &'static str, default: f64) -> Result<f32> {
        match self.or(key, default)? {
            eps if (0.0..=1.0).contains(&eps) => Ok(eps as f32),
            eps => Err(self.refuse(key, format!("is {eps}; the epsilon of a norm is from 0 to 1"))),
        }
    }

    /// The first of these keys in the file, else the first of the list.
    pub(crate) fn present(&self, keys: &[&'static str]) -> &'static str {
        let has = |key: &&&'static str| self.map.contains_key(**key);
        keys.iter().find(has).or(keys.first()).copied().unwrap_or_default()
    }

    /// The number of layers.
    pub fn layers(&self, key: &'static str) -> Result<usize> {
        match self.size(key)? {
            layers if layers <= MAX_LAYERS => Ok(layers),
            layers => Err(self.refuse(key, format!("is {layers}; at most {MAX_LAYERS} are supported"))),
        }
    }

    /// An activation function by Transformers' name.
    pub fn activation(&self, key: &'static str, default: &str) -> Result<Activation> {
        self.activation_named(key, &self.or(key, default.to_string())?)
    }

    /// An activation function by Transformers' name, which belongs to a key.
    pub fn activation_named(&self, key: &str, name: &str) -> Result<Activation> {
        match name {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu" | "gelu_python" => Ok(Activation::GeluErf),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" | "gelu_python_tanh" => {
                Ok(Activation::GeluTanh)
            }
            "relu" => Ok(Activation::Relu),
            "relu2" => Ok(Activation::Relu2),
            other => {
                let known = "silu, swish, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, relu2";
                Err(self.refuse(key, format!("is \"{other}\"; supported: {known}")))
            }
        }
    }

    /// Refuses any activation function but SiLU, by either of its names.
    pub fn silu(&self, key: &'static str) -> Result<()> {
        match self.raw(key) {
            Some(name) if name == "swish" => Ok(()),
            _ => self.only(key, "\"silu\""),
        }
    }

    /// Refuses any value but `wanted` (a JSON text); the key may be absent or `null`.
    pub fn only(&self, key: &'static str, wanted: &str) -> Result<()> {
        let Some(value) = self.raw(key).filter(|value| !value.is_null()) else { return Ok(()) };
        let found = value.to_string();
        if found == wanted {
            return Ok(());
        }
        Err(self.refuse(key, format!("is {found}; only {wanted} is supported")))
    }

    /// Reads the object of a key, none of whose own keys may remain unread; an absent one or `null` is empty.
    pub(crate) fn within<T>(
        &self,
        key: &'static str,
        model_type: &str,
        read: impl FnOnce(&Config<'_>) -> Result<T>,
    ) -> Result<T> {
        let empty = Map::new();
        let map = match self.raw(key) {
            None | Some(Value::Null) => &empty,
            Some(Value::Object(map)) => map,
            Some(other) => return Err(self.refuse(key, format!("is {}; an object is needed", shown(other)))),
        };
        let inner = Config::new(self.file, map);
        let value = read(&inner).and_then(|value| inner.finish(model_type).map(|()| value));
        value.map_err(|error| match error {
            Error::Config { file, key: own, what } => {
                Error::Config { file, key: format!("{key}.{own}"), what }
            }
            other => other,
        })
    }

    /// Parses a value that belongs to a key.
    pub(crate) fn parse<T: DeserializeOwned>(&self, key: &str, value: &Value) -> Result<T> {
        T::deserialize(value).map_err(|error| self.refuse(key, format!("is {}: {error}", shown(value))))
    }

    /// Refuses unread keys.
    pub(crate) fn finish(&self, model_type: &str) -> Result<()> {
        for (key, wanted) in ONLY {
            // Keys that a family has read are its own decision.
            if !self.read.borrow().contains(key) {
                self.only(key, wanted)?;
            }
        }
        let read = self.read.borrow();
        for (key, value) in self.map {
            let known = read.contains(key.as_str()) || HARMLESS.contains(&key.as_str()) || value.is_null();
            if !known {
                let what = format!(
                    "is not known for model_type \"{model_type}\" (value {}); it may change what the model computes, \
                     so it is refused. Remove it if it does not",
                    shown(value)
                );
                return Err(self.refuse(key, what));
            }
        }
        Ok(())
    }
}

/// A value, truncated to one line.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The f64 with the same short decimal as the f32: 1e-5, not 0.000009999999747378752.
pub(crate) fn short(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
