//! Translation of other tools' files to recipes: YAML of axolotl, LLaMA-Factory, torchtune and TRL. The kind of
//! training is determined first ([`kind::of`]); then each key is looked up in that kind's rules ([`rules`]). Keys that
//! cannot be translated are listed with the reason. Nothing in such a file is executed.

mod draft;
mod kind;
mod rules;
mod tool;
mod values;
mod yaml;

use serde_json::Value;

use crate::error::{Result, refuse};
use draft::Draft;
use kind::{Entries, Kind};
use rules::tables;

pub use kind::METHODS;
pub use tool::Tool;

/// A translated file.
#[derive(Clone, Debug)]
pub struct Translation {
    /// Tool that the file belongs to.
    pub tool: Tool,
    /// Shipped recipe that the translation extends.
    pub base: &'static str,
    /// Text of the recipe.
    pub recipe: String,
    /// Keys of the file that could not be translated, with the reasons.
    pub unsaid: Vec<(String, String)>,
}

/// Translates the text of a file.
///
/// The kind of training is determined first, over all keys; each key is then read in that light, and settings that the
/// file leaves out get its tool's defaults. A value that the recipe refuses is listed as untranslated.
///
/// # Errors
/// Not YAML, or not a file of these tools.
pub fn translate(text: &str) -> Result<Translation> {
    translated(text, None)
}

/// Translates the text of a file that trains by one of [`METHODS`], whatever its keys suggest. Keys of other methods
/// are listed as untranslated.
///
/// # Errors
/// Those of [`translate`], and an unknown method.
pub fn translate_as(text: &str, method: &str) -> Result<Translation> {
    match Kind::named(method) {
        Some(kind) => translated(text, Some(kind)),
        None => refuse!("`{method}` is no method; there are {}", METHODS.join(", ")),
    }
}

fn translated(text: &str, kind: Option<Kind>) -> Result<Translation> {
    let entries = match yaml::entries(text) {
        Ok(entries) => entries,
        Err(why) => refuse!("is no YAML file of settings: {why}"),
    };
    let tool = tool(&entries)?;
    let found = Entries(&entries);
    let kind = kind.unwrap_or_else(|| kind::of(tool, found));
    let mut draft = Draft::new(tool, kind, kind::adapter(tool, found));
    read(&mut draft, &entries);
    rules::defaults::fill(&mut draft);
    let base = draft.base();
    let (recipe, unsaid) = draft.finish()?;
    Ok(Translation { tool, base, recipe, unsaid })
}

/// Keys that only LLaMA-Factory has.
const OF_LLAMA_FACTORY: &[&str] = &["stage", "finetuning_type", "cutoff_len", "template", "export_dir"];

/// Returns the tool that a file belongs to.
fn tool(entries: &[(String, Value)]) -> Result<Tool> {
    let has = |key: &str| entries.iter().any(|(name, _)| name == key);
    let under = |table: &str| entries.iter().any(|(name, _)| name.starts_with(table));
    let newer = has("train_dataset") || under("peft_config.") || under("dist_config.");
    Ok(if has("base_model") {
        Tool::Axolotl
    } else if entries.iter().any(|(name, _)| name.ends_with("._component_")) {
        Tool::Torchtune
    } else if (has("model_name_or_path") && OF_LLAMA_FACTORY.iter().any(|key| has(key)))
        || (has("model") && newer)
    {
        Tool::LlamaFactory
    } else if has("model_name_or_path") || has("per_device_train_batch_size") {
        Tool::Trl
    } else {
        refuse!(
            "has no key by which axolotl's (base_model), LLaMA-Factory's (model_name_or_path, stage), torchtune's (_component_) or TRL's \
             (model_name_or_path) files are known"
        );
    })
}

/// Applies all entries in the order of the rules, never of the file: common keys before those of one kind.
fn read(draft: &mut Draft, entries: &[(String, Value)]) {
    let tables = tables::of(draft.kind);
    let mut ruled = Vec::new();
    let mut unsaid = Vec::new();
    for (at, (key, value)) in entries.iter().enumerate() {
        let bare = rules::bare(key);
        // Empty or disabled values have no effect.
        if yaml::is_nothing(value) && !rules::MEANS_OFF.contains(&bare) {
            continue;
        }
        let find = |(number, table): (usize, &&'static [rules::Row])| {
            let place = |(keys, _): &rules::Row| keys.iter().position(|known| *known == bare || known == key);
            let row = |(row, entry): (usize, &rules::Row)| Some((number, row, place(entry)?, entry.1));
            table.iter().enumerate().find_map(row)
        };
        // A kind's own rule for a key has precedence over the common one.
        let found = tables.iter().enumerate().rev().find_map(find);
        match found {
            Some((table, row, alias, rule)) => ruled.push(((table, row, alias, at), key, value, rule)),
            None if rules::implied::is_implied(bare) => {}
            None => {
                let (name, why) = if let Some(only) = rules::implied::only(bare, value) {
                    let Some(why) = only else { continue };
                    (key.as_str(), why.to_string())
                } else if tables::any_has(bare) {
                    (key.as_str(), format!("says nothing where a model learns from {}", draft.kind.name()))
                } else {
                    rules::implied::reason(key)
                };
                // One line per reason.
                if !unsaid.iter().any(|(_, other, _)| other == name) {
                    unsaid.push((at, name.to_string(), why));
                }
            }
        }
    }
    ruled.sort_by_key(|(order, ..)| *order);
    for ((.., at), key, value, rule) in ruled {
        draft.at = key.clone();
        if let Err(why) = rule(draft, value) {
            unsaid.push((at, key.clone(), why));
        }
    }
    unsaid.sort_by_key(|(at, ..)| *at);
    unsaid.into_iter().for_each(|(_, key, why)| draft.unsaid(&key, &why));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Writes a dotted key as YAML.
    fn nested(key: &str, value: &str) -> String {
        let parts: Vec<&str> = key.split('.').collect();
        let line = |(depth, part): (usize, &&str)| format!("{}{part}:", "  ".repeat(depth));
        parts.iter().enumerate().map(line).collect::<Vec<_>>().join("\n") + " " + value + "\n"
    }

    /// Every key of the tools' own lists (`oracle/foreign_keys.py`) sets something in the recipe, is listed as
    /// untranslated, or is known to have no effect here.
    #[test]
    fn no_key_of_a_tools_own_list_is_dropped_unseen() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/foreign_keys");
        for (tool, header) in [
            ("axolotl", "base_model: m\n"),
            ("llamafactory", "model_name_or_path: m\nstage: sft\n"),
            ("torchtune", "recipe._component_: x\n"),
            ("trl", "model_name_or_path: m\n"),
        ] {
            let list = std::fs::read_to_string(folder.join(format!("{tool}.txt"))).unwrap();
            let plain = translate(header).unwrap();
            let mut dropped = Vec::new();
            for key in list.lines().filter(|key| !header.contains(&format!("{key}:"))) {
                let Ok(found) = translate(&format!("{header}{}", nested(key, "7"))) else { continue };
                let named =
                    |(name, _): &(String, String)| key == name || key.starts_with(&format!("{name}."));
                let bare = rules::bare(key);
                // A value that a rule accepts may equal the recipe's own.
                let ruled = tables::of(Kind::Answers).into_iter().flat_map(|table| table.iter());
                let ruled =
                    ruled.flat_map(|(keys, _)| keys.iter()).any(|known| *known == bare || *known == key);
                let known = ruled || rules::implied::is_implied(bare) || tables::any_has(bare);
                if !found.unsaid.iter().any(named) && found.recipe == plain.recipe && !known {
                    dropped.push(key);
                }
            }
            assert!(dropped.is_empty(), "{tool}: {dropped:?}");
        }
    }

    #[test]
    fn a_key_that_changes_nothing_does_so_with_its_usual_value_alone() {
        for (key, usual, other) in [
            ("lora_bias", "none", "all"),
            ("bnb_4bit_quant_type", "nf4", "fp4"),
            ("quantization_method", "bnb", "hqq"),
            ("train_on_eos", "turn", "last"),
            ("roles_to_train", "[assistant]", "[user, assistant]"),
        ] {
            let unsaid = |value: &str| {
                let found = translate(&format!("base_model: m\n{key}: {value}\n")).unwrap().unsaid;
                found.iter().any(|(name, _)| name == key)
            };
            assert_eq!((unsaid(usual), unsaid(other)), (false, true), "{key}");
        }
    }
}
