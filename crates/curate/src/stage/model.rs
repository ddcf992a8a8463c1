//! Model folders named by stage options.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// Hugging Face folder of a path: the path itself, or the `model` folder of a run.
pub(super) fn folder(written: &Path) -> Result<PathBuf, Error> {
    let refuse =
        |found: String, advice: &str| Err(Error::Setting { key: "model", found, advice: advice.to_owned() });
    if written.as_os_str().is_empty() {
        return refuse(
            "nothing".to_owned(),
            "name the Hugging Face folder of a model, or a run of `fathom train`",
        );
    }
    let has = |name: &'static str| move |folder: &PathBuf| folder.join(name).is_file();
    let folders = [written.to_owned(), written.join("model")];
    let Some(folder) = folders.into_iter().find(has("config.json")) else {
        let advice = "there is no config.json in it; name the Hugging Face folder of a model, or a run of `fathom train`";
        return refuse(format!("`{}`", written.display()), advice);
    };
    Ok(folder)
}

/// Files that affect a model's output, besides its weights.
const DECIDING: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
];

/// Files in a folder that affect its model's output, sorted by name.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let of_model = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        DECIDING.contains(&name.as_str())
            || name.ends_with(".safetensors")
            || name.ends_with(".safetensors.index.json")
    };
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let listing = std::fs::read_dir(folder).map(|listing| listing.flatten().map(|entry| entry.path()));
        listing.map(Iterator::collect).unwrap_or_default()
    };
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
        inside(folder).into_iter().partition(|it| it.is_dir());
    let mut files: Vec<PathBuf> = files.into_iter().filter(of_model).collect();
    // Modules of Sentence-Transformers, such as `1_Pooling`.
    let numbered = |folder: &&PathBuf| {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.split_once('_').is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    };
    files.extend(folders.iter().filter(numbered).flat_map(|folder| inside(folder)).filter(of_model));
    // Location of the base model's configuration in a classifier's folder.
    files.extend(Some(folder.join("base/config.json")).filter(|path| path.is_file()));
    files.sort();
    files
}
