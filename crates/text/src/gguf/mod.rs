//! Tokenizers in GGUF files: read as the files that Transformers keeps next to a model, and written in llama.cpp's
//! form.
//!
//! A pre-tokenizer has a name in such a file (`tokenizer.ggml.pre`), which stands for expressions in llama.cpp's
//! code. Unknown names are refused, as is a tokenizer without such a name: guessing would split texts wrongly.

mod keys;
mod pre;
mod read;
mod spaces;
mod write;

use std::io::ErrorKind;
use std::path::Path;

use fathom_base::gguf::{self, Fault, Gguf};

pub use write::metadata;

use crate::error::{Error, OrIo, Result};

/// Files that can be derived from a GGUF file.
pub const FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"];

/// A file of a model's folder, read from the folder or derived from a GGUF file. `None` if there is no such file.
///
/// # Errors
/// The file cannot be read, or the keys of a GGUF file do not describe a tokenizer.
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

/// Metadata of a GGUF file other than weights and tokenizer: name, authors, license, tags, languages. Empty for a
/// folder.
///
/// # Errors
/// The file cannot be read.
pub fn description(model: &Path) -> Result<Vec<(String, gguf::Value)>> {
    // Determined by the weights when they are written.
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
