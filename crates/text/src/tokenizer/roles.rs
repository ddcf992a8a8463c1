//! Ids that begin and end a text: read from the files next to a tokenizer, or known by their spelling.

use crate::error::{Error, Result};
use crate::gguf::side_file;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Spellings of end-of-text tokens, tried in this order if no file names one.
pub(super) const KNOWN_EOS: [&str; 7] =
    ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|eot_id|>", "[SEP]"];
/// Tokenizer classes without a beginning-of-text token unless their configuration names one.
const WITHOUT_BOS: [&str; 4] =
    ["PreTrainedTokenizerFast", "TokenizersBackend", "Qwen2Tokenizer", "Qwen2TokenizerFast"];
const KNOWN_BOS: [&str; 4] = ["<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>"];

/// Other token keys that chat templates may use.
const OTHERS: [&str; 5] = ["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Ids of the special roles.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    pub(super) bos: Option<u32>,
    /// Other named tokens in the tokenizer's own files, by key.
    pub(super) others: BTreeMap<&'static str, String>,
    /// True if the tokenizer's own files define no beginning of text, whatever the model's configuration names.
    pub(super) without_bos: bool,
    /// First the id that ends a document, then further ids that end generation.
    pub(super) eos: Vec<u32>,
}

impl Roles {
    /// Reads the roles of a model folder; `id_of` looks up a spelling.
    ///
    /// The token named in the tokenizer's own files comes first in `eos`, since training documents end with it; ids
    /// from `generation_config.json` and `config.json` follow as further stops.
    pub(super) fn from_dir(dir: &Path, id_of: impl Fn(&str) -> Option<u32>) -> Result<Self> {
        let mut roles = Self::default();
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let path = dir.join(name);
            let Some(config) = side_file(dir, name)?.map(|bytes| parse_object(&bytes, &path)).transpose()?
            else {
                continue;
            };
            if let Some(id) = spelled(&config, "eos_token", &path, &id_of)? {
                roles.add_eos(id);
            }
            if let Some(id) = spelled(&config, "bos_token", &path, &id_of)? {
                roles.bos.get_or_insert(id);
            }
            for key in OTHERS {
                let said = config.get(key).map(|token| token.get("content").unwrap_or(token));
                if let Some(token) = said.and_then(Value::as_str) {
                    roles.others.entry(key).or_insert_with(|| token.to_string());
                }
            }
            let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
            roles.without_bos |= config.get("bos_token").map_or(WITHOUT_BOS.contains(&class), Value::is_null);
        }
        roles.without_bos &= roles.bos.is_none();
        for name in ["generation_config.json", "config.json"] {
            let path = dir.join(name);
            let Some(config) = side_file(dir, name)?.map(|bytes| parse_object(&bytes, &path)).transpose()?
            else {
                continue;
            };
            for id in numbered(&config, "eos_token_id", &path)? {
                roles.add_eos(id);
            }
            if let Some(&id) = numbered(&config, "bos_token_id", &path)?.first() {
                roles.bos.get_or_insert(id);
            }
        }
        Ok(roles)
    }

    /// Fills roles that no file named.
    pub(super) fn guess_missing(&mut self, id_of: impl Fn(&str) -> Option<u32>) {
        if self.eos.is_empty() {
            self.eos.extend(KNOWN_EOS.iter().find_map(|token| id_of(token)));
        }
        if self.bos.is_none() {
            self.bos = KNOWN_BOS.iter().find_map(|token| id_of(token));
        }
    }

    fn add_eos(&mut self, id: u32) {
        if !self.eos.contains(&id) {
            self.eos.push(id);
        }
    }
}

pub(super) fn parse_object(bytes: &[u8], path: &Path) -> Result<Value> {
    let bad = |reason: String| Error::Json { path: path.to_owned(), key: String::new(), reason };
    let value: Value = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
    if value.is_object() { Ok(value) } else { Err(bad("an object was expected".into())) }
}

/// Parses a token given as a string or as an object with `content`; a spelling missing from the vocabulary is an
/// error.
fn spelled(
    config: &Value,
    key: &str,
    path: &Path,
    id_of: impl Fn(&str) -> Option<u32>,
) -> Result<Option<u32>> {
    let bad = |reason: String| Error::Json { path: path.to_owned(), key: key.to_owned(), reason };
    let token = match config.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(token)) => token.as_str(),
        Some(Value::Object(object)) => match object.get("content") {
            Some(Value::String(token)) => token.as_str(),
            _ => return Err(bad("its `content` must be a string".into())),
        },
        Some(other) => return Err(bad(format!("a token was expected, not {other}"))),
    };
    match id_of(token) {
        Some(id) => Ok(Some(id)),
        None => Err(bad(format!("`{token}` is not in the vocabulary of tokenizer.json"))),
    }
}

/// Parses a token id or a list of them.
fn numbered(config: &Value, key: &str, path: &Path) -> Result<Vec<u32>> {
    let one = |value: &Value| {
        value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| Error::Json {
            path: path.to_owned(),
            key: key.to_owned(),
            reason: format!("a token id was expected, not {value}"),
        })
    };
    match config.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
    }
}

/// Parses the roles from the bytes of any of the four files; the entry point of the fuzz target.
pub(crate) fn probe(bytes: &[u8]) -> Result<()> {
    let path = Path::new("tokenizer_config.json");
    let config = parse_object(bytes, path)?;
    let id_of = |token: &str| (token.len() < 16).then_some(token.len() as u32);
    for key in ["eos_token", "bos_token"] {
        spelled(&config, key, path, id_of)?;
        numbered(&config, &format!("{key}_id"), path)?;
    }
    Ok(())
}
