//! The files of a folder of NeMo Guardrails.

use std::path::{Path, PathBuf};

use super::colang::Program;
use super::outcome::{ImportError, ImportGap};
use super::yaml::{self, Node};
use crate::config::FileError;

/// Most files of a folder.
const MOST_FILES: usize = 10_000;

/// Files that say something, and things that are known to be lost.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Configurations with their paths, relative to the folder.
    pub configs: Vec<(PathBuf, Node)>,
    /// Flows with their paths.
    pub programs: Vec<(PathBuf, Program)>,
    /// Files that are not translated.
    pub unsaid: Vec<ImportGap>,
}

/// Reads a folder, or one `config.yml`.
///
/// # Errors
/// No configuration there; a file that cannot be read or is malformed; Colang 2.
pub(super) fn read(folder: &Path) -> Result<Files, ImportError> {
    let mut files = Files::default();
    if folder.is_file() {
        let root = folder.parent().unwrap_or(Path::new(""));
        files.add(root, folder)?;
    } else {
        let ignored = ignored(folder)?;
        let mut paths = Vec::new();
        walk(folder, &ignored, &mut paths)?;
        paths.sort();
        for path in &paths {
            files.add(folder, path)?;
        }
    }
    if files.configs.is_empty() && files.programs.is_empty() {
        return Err(ImportError::Missing(folder.to_path_buf()));
    }
    for (file, config) in &files.configs {
        let version =
            config.get("colang_version").filter(|node| node.text().is_none_or(|it| !it.starts_with('1')));
        if let Some(node) = version {
            return Err(wrong(
                file,
                node.line,
                "Colang 2 is not translated: its flows are programs of their own",
            ));
        }
    }
    Ok(files)
}

fn wrong(file: &Path, line: usize, message: impl Into<String>) -> ImportError {
    FileError { file: file.to_path_buf(), line, message: message.into() }.into()
}

fn text(path: &Path) -> Result<String, ImportError> {
    let bytes = std::fs::read(path).map_err(|error| fathom_base::Error::io("read", path, error))?;
    String::from_utf8(bytes).map_err(|_| wrong(path, 1, "is not text in UTF-8"))
}

impl Files {
    fn add(&mut self, root: &Path, path: &Path) -> Result<(), ImportError> {
        let name = path.strip_prefix(root).unwrap_or(path).to_path_buf();
        let unsaid = |why: &str| ImportGap {
            file: name.clone(),
            line: 1,
            name: name.to_string_lossy().into_owned(),
            why: why.to_string(),
        };
        if name.starts_with("kb") {
            self.unsaid.push(unsaid("is a knowledge base: `fathom index` makes an index of it"));
            return Ok(());
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("yml" | "yaml") => {
                let read = yaml::read(&text(path)?)
                    .map_err(|(line, why)| wrong(path, line, format!("is no YAML: {why}")))?;
                self.configs.push((name, read));
            }
            Some("co") => self.programs.push((name, Program::read(&text(path)?))),
            Some("py") => {
                self.unsaid.push(unsaid("is code, which is not executed; write its checks as rails"))
            }
            Some("yara" | "yar") => {
                self.unsaid.push(unsaid("has rules of YARA; the rail `regex` has patterns of its own"));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Patterns of names that `.railsignore` leaves out, from the folder or one above it.
fn ignored(folder: &Path) -> Result<Vec<String>, ImportError> {
    let found = folder.ancestors().map(|above| above.join(".railsignore")).find(|file| file.is_file());
    let Some(file) = found else { return Ok(Vec::new()) };
    let text = text(&file)?;
    let lines = text.lines().filter(|line| !line.starts_with('#')).map(str::trim);
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_string).collect())
}

fn walk(folder: &Path, ignored: &[String], paths: &mut Vec<PathBuf>) -> Result<(), ImportError> {
    let entries = std::fs::read_dir(folder).map_err(|error| fathom_base::Error::io("read", folder, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| fathom_base::Error::io("read", folder, error))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            walk(&path, ignored, paths)?;
        } else if path.is_file()
            && !ignored.iter().any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
        {
            paths.push(path);
        }
        if paths.len() > MOST_FILES {
            return Err(wrong(folder, 1, format!("has more than {MOST_FILES} files")));
        }
    }
    Ok(())
}

/// Returns whether a name matches a pattern of `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(c) if *c == b'?' || *c == name[of] => (at, of) = (at + 1, of + 1),
            _ => match star {
                Some((back, from)) => {
                    (at, of) = (back + 1, from + 1);
                    star = Some((back, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_out_by_pattern() {
        let of = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        for (pattern, name, expected) in [
            ("*.co", "a.co", true),
            ("*.co", "a.com", false),
            ("a?c*", "abcd", true),
            ("config.yml", "config.yml", true),
            ("*", "", true),
            ("**a*b", "xaxb", true),
            ("a", "b", false),
        ] {
            assert_eq!(of(pattern, name), expected, "{pattern} {name}");
        }
    }
}
