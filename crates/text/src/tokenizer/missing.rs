//! Advice for a missing `tokenizer.json`.

use std::path::Path;

use fathom_base::hub;

/// Other tokenizer files, from which Transformers can create a `tokenizer.json`.
const OTHERS: [&str; 5] =
    ["tokenizer.model", "spiece.model", "tokenizer.tiktoken", "vocab.json", "vocab.txt"];

/// Advice for a missing file, derived from the files next to it or from its folder's name.
pub(super) fn advice(path: &Path) -> Option<String> {
    if path.exists() {
        return None;
    }
    // The path may denote a folder, or a file in it.
    let folder = path.parent().filter(|_| path.extension().is_some_and(|end| end == "json"));
    if let Some(advice) = hub::advice(folder.unwrap_or(path)) {
        return Some(advice);
    }
    let folder = folder?;
    let other = OTHERS.into_iter().find(|name| folder.join(name).is_file())?;
    let quoted = format!("{:?}", folder.display().to_string());
    Some(format!(
        "{other} is another form of tokenizer, which Fathom does not read. Transformers converts it (pip install transformers \
         sentencepiece protobuf), by these lines of Python:\n\n    \
         from transformers import AutoTokenizer\n    \
         AutoTokenizer.from_pretrained({quoted}).save_pretrained({quoted})\n"
    ))
}
