//! Sets with a part for each language: tasks for the languages that are in a folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::yaml;
use crate::error::{Error, Result};

/// Data path of FLORES in task files.
pub const FLORES: &str = "flores";
/// The language that FLORES is translated from and to.
const ENGLISH: &str = "eng_Latn";
/// Folders of FLORES in that of sets.
const FLORES_FOLDERS: [&str; 4] = ["flores200_dataset", "flores200", "flores", "facebook/flores"];
/// Splits of FLORES.
const FLORES_SPLITS: [&str; 2] = ["devtest", "dev"];
/// Where people get FLORES.
const FLORES_SOURCE: &str = "https://github.com/facebookresearch/flores (flores200_dataset, with files such as devtest/eng_Latn.devtest)";

/// A set with a part for each language.
struct Family {
    name: &'static str,
    path: &'static str,
    base: &'static str,
}

const FAMILIES: [Family; 3] = [
    Family {
        name: "belebele",
        path: "facebook/belebele",
        base: include_str!("../../tasks/belebele_base.yaml"),
    },
    Family {
        name: "global_mmlu",
        path: "CohereLabs/Global-MMLU",
        base: include_str!("../../tasks/global_mmlu_base.yaml"),
    },
    Family {
        name: "global_mmlu_lite",
        path: "CohereLabs/Global-MMLU-Lite",
        base: include_str!("../../tasks/global_mmlu_base.yaml"),
    },
];
const FLORES_BASE: &str = include_str!("../../tasks/flores_base.yaml");

/// Where people get a set whose languages were not found, by the name of its group.
pub fn source(name: &str) -> Option<String> {
    if name.starts_with(FLORES) {
        return Some(FLORES_SOURCE.to_string());
    }
    // The longest name that fits: `global_mmlu_lite_en` is of the smaller set.
    let family = FAMILIES.iter().rfind(|family| name.starts_with(family.name))?;
    Some(format!("https://huggingface.co/datasets/{}", family.path))
}

/// Task files for the languages whose files are in a folder: `FAMILY_LANGUAGE` and the group `FAMILY`.
///
/// # Errors
/// A built-in file cannot be read.
pub fn task_files(folder: &Path) -> std::result::Result<Vec<Map<String, Value>>, String> {
    let mut files = Vec::new();
    for family in &FAMILIES {
        let last = family.path.rsplit('/').next().unwrap_or_default();
        let roots = [family.path.replace('/', "__"), family.path.into(), last.into(), family.name.into()];
        let found: BTreeSet<String> = roots.iter().flat_map(|root| parts(&folder.join(root))).collect();
        let members: Vec<(String, Value)> = found
            .iter()
            .map(|language| {
                let own = json!({"dataset_path": family.path, "dataset_name": language});
                (format!("{}_{language}", family.name), described(own, language, language, family.name))
            })
            .collect();
        extend(&mut files, family.base, family.name, "acc", members)?;
    }
    let found = flores_folder(Some(folder)).map(|root| flores_languages(&root)).unwrap_or_default();
    let others = found.iter().filter(|language| *language != ENGLISH && found.contains(ENGLISH));
    let mut groups = Vec::new();
    for (group, is_source) in [("flores_from_english", true), ("flores_to_english", false)] {
        let member = |language: &String| {
            let [from, to] = if is_source { [ENGLISH, language] } else { [language, ENGLISH] };
            let own = json!({"dataset_kwargs": {"from": from, "to": to}});
            (format!("flores_{from}-{to}"), described(own, language, &format!("{from}-{to}"), group))
        };
        let members: Vec<(String, Value)> = others.clone().map(member).collect();
        groups.extend((!members.is_empty()).then_some(group));
        extend(&mut files, FLORES_BASE, group, "chrf++", members)?;
    }
    if !groups.is_empty() {
        files.extend(json!({"group": FLORES, "task": groups}).as_object().cloned());
    }
    Ok(files)
}

/// The keys of a task with its language.
fn described(mut keys: Value, language: &str, alias: &str, set: &str) -> Value {
    keys["task_alias"] = alias.into();
    keys["metadata"] = json!({"version": 1.0, "language": language, "set": set});
    keys
}

/// Adds the tasks of a group over a base, and the group with the mean over languages.
fn extend(
    files: &mut Vec<Map<String, Value>>,
    base: &str,
    group: &str,
    metric: &str,
    members: Vec<(String, Value)>,
) -> std::result::Result<(), String> {
    if members.is_empty() {
        return Ok(());
    }
    let base = yaml::read(base)?;
    let names: Vec<&String> = members.iter().map(|member| &member.0).collect();
    let mean = json!([{"metric": metric, "weight_by_size": false}]);
    let whole = json!({"group": group, "task": names, "aggregate_metric_list": mean});
    for (name, keys) in &members {
        let mut file = base.clone();
        file.insert("task".into(), name.as_str().into());
        file.extend(keys.as_object().cloned().unwrap_or_default());
        files.push(file);
    }
    files.extend(whole.as_object().cloned());
    Ok(())
}

/// Names of the parts of a set: folders, and files of JSON lines.
fn parts(root: &Path) -> Vec<String> {
    let inside = |folder: PathBuf| {
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|it| Some(it.ok()?.path()))
    };
    let is_part = |path: &PathBuf| path.extension().is_some_and(|it| it == "jsonl");
    let has_test = |path: &PathBuf| {
        let name =
            |path: PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("test"));
        path.is_dir() && inside(path.clone()).any(name)
    };
    let all = inside(root.to_path_buf()).filter(|path| is_part(path) || has_test(path));
    let all = all.chain(inside(root.join("data")).filter(is_part));
    all.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect()
}

/// The folder of FLORES in that of sets.
fn flores_folder(folder: Option<&Path>) -> Option<PathBuf> {
    let places = FLORES_FOLDERS.iter().map(|name| folder.map(|folder| folder.join(name)));
    places.flatten().chain(folder.map(Path::to_path_buf)).find(|root| root.join(FLORES_SPLITS[0]).is_dir())
}

fn flores_languages(root: &Path) -> BTreeSet<String> {
    let split = FLORES_SPLITS[0];
    let files =
        std::fs::read_dir(root.join(split)).into_iter().flatten().filter_map(|it| Some(it.ok()?.path()));
    let of_split = files.filter(|path| path.extension().is_some_and(|it| it == split));
    of_split.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect()
}

/// Pairs of sentences of a split of FLORES, for `dataset_kwargs` with `from` and `to`.
///
/// # Errors
/// A missing file; files of different lengths.
pub fn pairs(
    task: &str,
    kwargs: &Value,
    folder: Option<&Path>,
    split: &str,
) -> Result<Vec<Map<String, Value>>> {
    let wrong = |reason: String| Error::task(task, reason);
    let [Some(from), Some(to)] = ["from", "to"].map(|key| kwargs[key].as_str()) else {
        return Err(wrong("`dataset_path: flores` needs `dataset_kwargs` with `from` and `to`".into()));
    };
    let root = flores_folder(folder).ok_or_else(|| {
        wrong(format!(
            "FLORES is not there, and nothing is downloaded. People get it from {FLORES_SOURCE}; --data-dir DIR names the folder"
        ))
    })?;
    let read = |language: &str| -> Result<Vec<String>> {
        let path = root.join(split).join(format!("{language}.{split}"));
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))?;
        Ok(text.lines().map(str::to_string).collect())
    };
    let (sources, targets) = (read(from)?, read(to)?);
    if sources.is_empty() || sources.len() != targets.len() {
        return Err(wrong(format!(
            "{from} has {} sentences in {split}, and {to} {}",
            sources.len(),
            targets.len()
        )));
    }
    let row = |(source, target)| json!({"from": from, "to": to, "source": source, "target": target});
    Ok(sources.into_iter().zip(targets).map(row).filter_map(|row| row.as_object().cloned()).collect())
}
