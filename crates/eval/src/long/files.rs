//! The user's files of a set, and texts that are filled from their rows.

use std::path::{Path, PathBuf};

use fathom_text::lessons::Rows;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::python::printed;

/// A row.
pub type Row = Map<String, Value>;

/// The files of a set.
#[derive(Debug)]
pub struct Files<'f> {
    /// Name of the task.
    pub task: &'f str,
    /// Folder of `--data-dir`.
    pub folder: Option<&'f Path>,
}

impl Files<'_> {
    /// An error of the task.
    pub fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::task(self.task, reason)
    }

    /// The first of the folders `parts` of `--data-dir` that has a file.
    pub fn find(&self, parts: &[&str], file: &str, source: &str) -> Result<PathBuf> {
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

    /// The rows of a file.
    pub fn read(&self, path: &Path) -> Result<Vec<Row>> {
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
pub fn filled(template: &str, of: &dyn Fn(&str) -> Option<String>) -> String {
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
pub fn member(row: &Row, name: &str) -> Option<String> {
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
