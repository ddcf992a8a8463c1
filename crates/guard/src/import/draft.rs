//! A `guard.toml` in the making.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::outcome::{ImportGap, NemoImport};

/// A table `[[rail]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RailDraft {
    /// Keys with values, in order.
    pub lines: Vec<(&'static str, toml::Value)>,
}

impl RailDraft {
    /// A rail of a kind in a direction, named after its flow.
    pub fn new(kind: &str, flow: &str, direction: &str) -> RailDraft {
        let lines = vec![
            ("use", kind.into()),
            ("name", flow.into()),
            ("on", toml::Value::Array(vec![direction.into()])),
        ];
        RailDraft { lines }
    }

    /// With a key.
    pub fn with(mut self, key: &'static str, value: impl Into<toml::Value>) -> RailDraft {
        self.lines.push((key, value.into()));
        self
    }

    /// With a list of texts.
    pub fn with_list(self, key: &'static str, texts: &[String]) -> RailDraft {
        let list = texts.iter().map(|text| text.as_str().into()).collect();
        self.with(key, toml::Value::Array(list))
    }
}

/// The file.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Keys of `[guard]`.
    pub guard: Vec<(&'static str, toml::Value)>,
    /// Rails in order.
    pub rails: Vec<RailDraft>,
    /// Rules of tools: names with their keys.
    pub tools: Vec<(String, Vec<(&'static str, toml::Value)>)>,
    /// Things that it does not say.
    pub unsaid: Vec<ImportGap>,
}

impl Draft {
    /// Lists a thing that cannot be said.
    pub fn unsaid(&mut self, file: &Path, line: usize, name: impl Into<String>, why: impl Into<String>) {
        let file: PathBuf = file.to_path_buf();
        self.unsaid.push(ImportGap { file, line, name: name.into(), why: why.into() });
    }

    /// The text, and the list in the order of files and lines.
    pub fn finish(mut self) -> NemoImport {
        let mut toml = String::new();
        if !self.guard.is_empty() {
            toml += "[guard]\n";
            write_lines(&mut toml, &self.guard);
        }
        for rail in &self.rails {
            toml += if toml.is_empty() { "[[rail]]\n" } else { "\n[[rail]]\n" };
            write_lines(&mut toml, &rail.lines);
        }
        for (name, lines) in &self.tools {
            _ = writeln!(toml, "\n[tools.{}]", toml::Value::String(name.clone()));
            write_lines(&mut toml, lines);
        }
        self.unsaid.sort();
        self.unsaid.dedup();
        NemoImport { toml, rails: self.rails.len(), unsaid: self.unsaid }
    }
}

fn write_lines(toml: &mut String, lines: &[(&'static str, toml::Value)]) {
    for (key, value) in lines {
        _ = writeln!(toml, "{key} = {value}");
    }
}
