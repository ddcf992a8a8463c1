//! Model card (`README.md`) of a model's folder, as the Hub and Transformers read it.

use std::path::Path;

use fathom_model::{EncoderHead, Spec, open_any_config};

use crate::error::{Context, Result};

/// Writes the card of a model, naming `base` if it was made from one. An existing card is left alone, and a model that
/// Transformers does not know gets none.
///
/// # Errors
/// A file that cannot be written.
pub fn write(folder: &Path, spec: &Spec, base: Option<&Path>) -> Result<()> {
    let path = folder.join("README.md");
    if path.exists() || spec.retrieval.is_some() {
        return Ok(());
    }
    fathom_base::files::write(&path, text(class(spec), base).as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Transformers' class that reads the model in a folder; that of decoders where there is no model.
pub fn class_of(folder: &Path) -> &'static str {
    open_any_config(folder).map_or("AutoModelForCausalLM", |(spec, _)| class(&spec))
}

/// Transformers' class that reads a model.
pub fn class(spec: &Spec) -> &'static str {
    match spec.encoder.as_ref().map(|parts| parts.head) {
        Some(EncoderHead::None) => "AutoModel",
        Some(EncoderHead::Masked) => "AutoModelForMaskedLM",
        Some(EncoderHead::Tokens(_)) => "AutoModelForTokenClassification",
        Some(EncoderHead::Text(_)) => "AutoModelForSequenceClassification",
        None if spec.source > 0 => "AutoModelForSeq2SeqLM",
        None if spec.scores > 0 => "AutoModelForSequenceClassification",
        None => "AutoModelForCausalLM",
    }
}

fn text(class: &str, base: Option<&Path>) -> String {
    let base = base.map_or(String::new(), |base| format!("base_model: {:?}\n", base.display().to_string()));
    format!(
        "---\n{base}library_name: transformers\n---\n\n# Model\n\nWritten by Fathom; Transformers reads it:\n\n```python\n\
         from transformers import {class}, AutoTokenizer\n\nmodel = {class}.from_pretrained(\".\")\n\
         tokenizer = AutoTokenizer.from_pretrained(\".\")\n```\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_names_the_base_and_the_class_that_reads_the_folder() {
        let card = text("AutoModelForCausalLM", Some(Path::new("models/base")));
        assert!(
            card.starts_with("---\nbase_model: \"models/base\"\nlibrary_name: transformers\n---\n"),
            "{card}"
        );
        assert!(card.contains("AutoModelForCausalLM.from_pretrained"), "{card}");
        let scores = text("AutoModelForSequenceClassification", None);
        assert!(
            scores.starts_with("---\nlibrary_name") && scores.contains("ForSequenceClassification"),
            "{scores}"
        );
    }
}
