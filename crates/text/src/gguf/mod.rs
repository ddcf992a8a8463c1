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
    let read = Gguf::open(model).and_then(|gguf| read::file(&gguf, name)).map_err(at(model))?;
    Ok(read.map(|value| format!("{value:#}\n").into_bytes()))
}

/// What a GGUF file says of a model besides its weights and tokenizer: its name, authors, licence, tags, languages. Nothing of a folder.
///
/// # Errors
/// It cannot be read.
pub fn description(model: &Path) -> Result<Vec<(String, gguf::Value)>> {
    // These follow from the weights that are written.
    const OF_WEIGHTS: [&str; 4] =
        ["general.architecture", "general.file_type", "general.quantization_version", "general.alignment"];
    if !gguf::is_file(model) {
        return Ok(Vec::new());
    }
    let values = Gguf::open(model).map_err(at(model))?.values;
    let kept = |key: &str| key.starts_with("general.") && !OF_WEIGHTS.contains(&key);
    Ok(values.into_iter().filter(|(key, _)| kept(key)).collect())
}

fn at(model: &Path) -> impl Fn(Fault) -> Error {
    move |Fault { key, what }| Error::Json { path: model.to_owned(), key, reason: what }
}

#[cfg(test)]
mod tests;
