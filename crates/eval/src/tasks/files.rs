//! Files of a set that a task names itself: `dataset_path: json|csv|parquet|text` with `dataset_kwargs`, as the package
//! `datasets` reads them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::config::TaskConfig;
use crate::error::{Error, Result};

/// Kinds of files that a task can name.
const KINDS: [&str; 4] = ["json", "csv", "parquet", "text"];
/// Settings that change nothing for local files.
const WITHOUT_EFFECT: [&str; 3] = ["trust_remote_code", "streaming", "verification_mode"];

/// Settings of the files that a task names.
#[derive(Clone, Debug, Default)]
pub struct FileSettings {
    /// The member of a JSON file that has the rows.
    pub field: Option<String>,
    /// The delimiter of a CSV file.
    pub delimiter: Option<u8>,
}

impl FileSettings {
    /// Those of a task; the defaults for sets that are no files of its own.
    ///
    /// # Errors
    /// A setting that is not read, or that has no value.
    pub fn of(config: &TaskConfig) -> Result<FileSettings> {
        let mut settings = FileSettings::default();
        let (Some(path), Some(Value::Object(kwargs))) =
            (config.text("dataset_path"), config.keys.get("dataset_kwargs"))
        else {
            return Ok(settings);
        };
        if !KINDS.contains(&path) || !kwargs.contains_key("data_files") {
            return Ok(settings);
        }
        for (key, value) in kwargs {
            let wrong =
                |needs: &str| Err(Error::task(&config.name, format!("`dataset_kwargs.{key}` {needs}")));
            match (key.as_str(), path, value.as_str()) {
                ("data_files" | "data_dir", ..) => {}
                (key, ..) if WITHOUT_EFFECT.contains(&key) => {}
                ("field", "json", Some(name)) => settings.field = Some(name.into()),
                ("sep" | "delimiter", "csv", Some(text)) => match text.as_bytes() {
                    [delimiter] => settings.delimiter = Some(*delimiter),
                    _ => return wrong("has to be one ASCII character"),
                },
                _ => {
                    return wrong(&format!(
                        "is not read for `dataset_path: {path}`; `data_files` and `data_dir` are, `field` of JSON, and `sep` of CSV"
                    ));
                }
            }
        }
        Ok(settings)
    }
}

/// The files that a task names for a split; `None` if it names none.
///
/// # Errors
/// A split that is not among them; a file that does not exist.
pub fn named(config: &TaskConfig, folder: Option<&Path>, split: &str) -> Result<Option<Vec<PathBuf>>> {
    let wrong = |reason: String| Error::task(&config.name, reason);
    let kwargs = config.keys.get("dataset_kwargs");
    let given = kwargs.and_then(|kwargs| kwargs.get("data_files"));
    let is_kind = config.text("dataset_path").is_some_and(|path| KINDS.contains(&path));
    let Some(given) = given.filter(|_| is_kind) else { return Ok(None) };
    let of_split = match given {
        Value::Object(splits) => splits.get(split).ok_or_else(|| {
            let known: Vec<&str> = splits.keys().map(String::as_str).collect();
            wrong(format!("`data_files` has no split `{split}`, only {}", known.join(", ")))
        })?,
        // Without splits, all is `train`.
        all if split == "train" => all,
        _ => {
            return Err(wrong(format!(
                "`data_files` without splits is the split `train`, and the task uses `{split}`"
            )));
        }
    };
    let dir = kwargs.and_then(|kwargs| kwargs["data_dir"].as_str()).map(PathBuf::from);
    let dir = match (dir, folder) {
        (Some(dir), Some(folder)) => Some(folder.join(dir)),
        (dir, folder) => dir.or(folder.map(Path::to_path_buf)),
    };
    let names = of_split.as_array().cloned().unwrap_or_else(|| vec![of_split.clone()]);
    let mut files = Vec::new();
    for name in names.iter().filter_map(Value::as_str) {
        let path = dir.as_ref().map_or_else(|| PathBuf::from(name), |dir| dir.join(name));
        let found = if path.is_file() { vec![path.clone()] } else { matching(&path) };
        if found.is_empty() {
            return Err(wrong(format!("{} does not exist (`dataset_kwargs.data_files`)", path.display())));
        }
        files.extend(found);
    }
    Ok(Some(files))
}

/// The files that a pattern with `*` in its last part matches, in order.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let Some((folder, last)) = pattern.parent().zip(pattern.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    if !last.contains('*') {
        return Vec::new();
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(inside) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = inside
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file())
        .filter(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| matches(last, name))
        })
        .collect();
    found.sort();
    found
}

/// True if a name is a pattern with texts for its stars.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(first) else { return false };
    let at = |(at, _): (usize, char)| matches(rest, &name[at..]);
    name.char_indices().any(at) || matches(rest, "")
}

#[cfg(test)]
mod tests {
    #[test]
    fn stars_match_any_text() {
        let of =
            |name: &str| ["te*.jsonl", "*.jsonl", "t*t.json"].map(|pattern| super::matches(pattern, name));
        assert_eq!(of("test.jsonl"), [true, true, false]);
        assert_eq!(of("test.json"), [false, false, true]);
        assert_eq!(of(".jsonl"), [false, true, false]);
    }
}
