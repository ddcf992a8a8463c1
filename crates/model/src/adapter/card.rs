//! How PEFT reads an adapter: the card in its folder, and lines of Python.

use std::collections::BTreeSet;

use super::config::task_type;
use super::targets::last;
use crate::spec::{Adapter, Spec};

/// Imports of Python, and the expression that loads an adapter from a folder over a base; both are quoted. `more` is a
/// further argument, or empty.
pub fn in_python(spec: &Spec, base: &str, folder: &str, more: &str) -> [String; 2] {
    let kind = match task_type(spec) {
        Some("SEQ_2_SEQ_LM") => "Seq2SeqLM",
        Some("FEATURE_EXTRACTION") => "FeatureExtraction",
        Some("TOKEN_CLS") => "TokenClassification",
        Some("SEQ_CLS") => "SequenceClassification",
        Some(_) => "CausalLM",
        None => {
            let class = "AutoModelForMaskedLM";
            return [
                format!("from peft import PeftModel; from transformers import {class}"),
                format!("PeftModel.from_pretrained({class}.from_pretrained({base}), {folder})"),
            ];
        }
    };
    let labels = spec.encoder.as_ref().map_or(0, |parts| parts.head.labels());
    let labels = if labels > 0 { format!("num_labels={labels}") } else { String::new() };
    let arguments: Vec<&str> = [folder, &labels, more].into_iter().filter(|part| !part.is_empty()).collect();
    let class = format!("AutoPeftModelFor{kind}");
    [format!("from peft import {class}"), format!("{class}.from_pretrained({})", arguments.join(", "))]
}

/// The card in an adapter's folder.
pub(super) fn readme(spec: &Spec, adapter: &Adapter, base: &str) -> String {
    let modules: BTreeSet<&str> = adapter.modules.keys().map(|name| last(name)).collect();
    let modules = match adapter.virtual_tokens() {
        0 => modules.into_iter().collect::<Vec<&str>>().join(", "),
        tokens => format!("{tokens} virtual tokens"),
    };
    let base = serde_json::to_string(base).unwrap_or_default();
    let [imports, model] = in_python(spec, &base, "\"adapter\"", "");
    let imports = imports.replace("; ", "\n");
    format!(
        "---\nbase_model: {base}\nlibrary_name: peft\n---\n\n# Adapter\n\nOf {modules}. Trained with Fathom; PEFT reads it:\n\n\
         ```python\n{imports}\n\nmodel = {model}\n```\n"
    )
}
