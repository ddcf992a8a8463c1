//! Tokenizers in GGUF files: read as the files that Transformers would have next to a model, and written as llama.cpp wants them.
//!
//! A pre-tokenizer has a name in such a file (`tokenizer.ggml.pre`), which stands for expressions in llama.cpp's code. Names whose
//! expressions are not known here are refused, as is a tokenizer that has none of these names: what is guessed cuts texts wrongly.

mod pre;
mod read;
mod spaces;
mod write;

use std::io::ErrorKind;
use std::path::Path;

use fathom_base::gguf::{self, Fault, Gguf};

use crate::error::{Error, OrIo, Result};

pub use write::metadata;

/// The chat template's key.
const TEMPLATE: &str = "tokenizer.chat_template";
/// Where a space is put before texts, where llama.cpp knows no such place (`Metaspace` of a `tokenizer.json`): a key of Fathom's own.
const PREPEND: &str = "fathom.tokenizer.prepend_scheme";
/// Files that a GGUF file stands for.
pub const FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"];

/// A file of a model's folder: from the folder, or as a GGUF file says it. `None` if there is no such file.
///
/// # Errors
/// It cannot be read; a GGUF file's keys that are no tokenizer.
pub fn side_file(model: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    if !gguf::is_file(model) {
        let path = model.join(name);
        return match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error).or_io("read", &path),
        };
    }
    if !FILES.contains(&name) {
        return Ok(None);
    }
    let Fault { key, what } = match Gguf::open(model).and_then(|gguf| read::file(&gguf, name)) {
        Ok(value) => return Ok(value.map(|value| format!("{value:#}\n").into_bytes())),
        Err(fault) => fault,
    };
    Err(Error::Json { path: model.to_owned(), key, reason: what })
}

#[cfg(test)]
mod tests;
