//! Sets for long contexts that are made of local files by the rules of NoLiMa (Adobe, 2025) and HELMET (Princeton, 2024).

mod examples;
mod helmet;
mod labels;
mod nolima;

use std::path::{Path, PathBuf};

use fathom_text::lessons::Rows;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::python::printed;
use crate::ruler;
use crate::tasks::{Sets, TaskConfig};

pub use helmet::task_files as helmet_files;
pub use nolima::task_files as nolima_files;

/// Data path of sets in task files.
pub const NOLIMA: &str = "nolima";
/// Data path of sets in task files.
pub const HELMET: &str = "helmet";

type Row = Map<String, Value>;

/// The rows of a task's set, `most` of them at most; `None` if it is neither of both.
///
/// # Errors
/// Missing files, with where people get them; files that cannot be used.
pub(crate) fn rows(
    config: &TaskConfig,
    sets: &Sets<'_>,
    most: &dyn Fn(usize) -> usize,
) -> Result<Option<Vec<Row>>> {
    let files = Files { task: &config.name, folder: sets.folder };
    let empty = Map::new();
    let kwargs = config.keys.get("dataset_kwargs").and_then(Value::as_object).unwrap_or(&empty);
    let mut rows = match config.text("dataset_path") {
        Some(NOLIMA) => {
            let tokenizer =
                sets.tokenizer.ok_or_else(|| files.wrong("is made by a tokenizer, and there is none"))?;
            nolima::rows(&files, kwargs, tokenizer, most)?
        }
        Some(HELMET) => helmet::rows(&files, kwargs)?,
        _ => return Ok(None),
    };
    if rows.is_empty() {
        return Err(files.wrong("has no rows"));
    }
    rows.truncate(most(rows.len()).max(1));
    Ok(Some(rows))
}

/// Tokens of the context that the rows of a set are made for, with one that begins the text; `None` for other sets.
pub fn room(config: &TaskConfig) -> Option<usize> {
    let kwargs = config.keys.get("dataset_kwargs")?;
    let tokens = match config.text("dataset_path") {
        Some(ruler::DATASET) => kwargs["tokens"].as_u64(),
        Some(NOLIMA) => kwargs["room"].as_u64(),
        _ => None,
    };
    tokens.map(|tokens| tokens as usize + 1)
}

/// The files of a set.
pub(crate) struct Files<'f> {
    task: &'f str,
    folder: Option<&'f Path>,
}

impl Files<'_> {
    fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::task(self.task, reason)
    }

    /// The first of the folders `parts` of `--data-dir` that has a file.
    fn find(&self, parts: &[&str], file: &str, source: &str) -> Result<PathBuf> {
        let folder = self.folder.unwrap_or_else(|| Path::new("DIR"));
        let found = parts.iter().map(|part| folder.join(part).join(file)).find(|path| path.exists());
        found.filter(|_| self.folder.is_some()).ok_or_else(|| {
            let place = folder.join(parts[0]).join(file);
            self.wrong(format!(
                "{} is not there, and nothing is downloaded. People get it from {source}; --data-dir DIR names the folder",
                place.display()
            ))
        })
    }

    fn read(&self, path: &Path) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for row in Rows::open(path)? {
            match row? {
                Value::Object(row) => rows.push(row),
                other => {
                    return Err(self.wrong(format!("{}: a row is no object: {other:.60}", path.display())));
                }
            }
        }
        Ok(rows)
    }
}

/// A text in Python's notation of `str.format` with the members of a row.
fn filled(template: &str, of: &dyn Fn(&str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::new(), template);
    while let Some(at) = rest.find(['{', '}']) {
        out += &rest[..at];
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{{").or_else(|| rest.strip_prefix("}}")) {
            out += &rest[..1];
            rest = after;
        } else if let Some((name, after)) = rest[1..].split_once('}') {
            out += &of(name).unwrap_or_default();
            rest = after;
        } else {
            break;
        }
    }
    out + rest
}

/// A member of a row as Python prints it.
fn member(row: &Row, name: &str) -> Option<String> {
    row.get(name).map(printed::text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_as_by_python() {
        let of = |name: &str| (name == "a").then(|| "1".to_string());
        assert_eq!(filled("{a}-{{a}}-{b}.", &of), "1-{a}-.");
        assert_eq!(filled("{a", &of), "{a");
    }
}
