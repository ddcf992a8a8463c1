//! Writes a tokenizer's folder in Transformers' layout.

use super::{Tokenizer, roles};
use crate::error::Result;
use crate::gguf::side_file;
use crate::store::write_whole;
use serde_json::{Value, json};
use std::path::Path;

/// File that names the special tokens, and often contains a chat template.
const CONFIG: &str = "tokenizer_config.json";

/// Files of a tokenizer in a model's folder.
pub const FILES: [&str; 9] = [
    "tokenizer.json",
    CONFIG,
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
];

impl Tokenizer {
    /// Writes `tokenizer.json` and a `tokenizer_config.json` with which Transformers' `AutoTokenizer` loads it. Files
    /// next to a tokenizer that was read from a folder are copied along: chat templates, padding, and others that
    /// Fathom does not use.
    ///
    /// # Errors
    /// The folder cannot be written, or the files next to the tokenizer can no longer be read.
    pub fn save_dir(&self, dir: impl AsRef<Path>) -> Result<()> {
        let dir = dir.as_ref();
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": false,
        });
        for name in &FILES[1..] {
            let Some(folder) = &self.folder else { continue };
            let Some(bytes) = side_file(folder, name)? else { continue };
            let from = folder.join(name);
            match *name {
                CONFIG => config = roles::parse_object(&bytes, &from)?,
                _ => write_whole(&dir.join(name), &bytes)?,
            }
        }
        for (key, id) in [("bos_token", self.own_bos()), ("eos_token", self.eos())] {
            let unnamed = config.get(key).is_none_or(Value::is_null);
            if let Some(token) = id.filter(|_| unnamed).and_then(|id| self.token(id)) {
                config[key] = token.into();
            }
        }
        write_whole(&dir.join(CONFIG), format!("{config:#}\n").as_bytes())?;
        self.save(dir.join("tokenizer.json"))
    }
}
