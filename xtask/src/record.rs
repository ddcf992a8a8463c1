//! Records of checks that passed. A record is committed, and CI leaves its check out while the sources are the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::gpu_check::root;

/// Where the record of a check is, and what it is of.
pub struct CheckRecord {
    /// Its file.
    pub file: &'static str,
    /// The command of `cargo xtask` that writes it.
    pub command: &'static str,
    /// Folders and files that the check depends on.
    pub sources: &'static [&'static str],
    /// Endings of the files in those folders that count; empty for all.
    pub endings: &'static [&'static str],
}

/// Contents of a record.
#[derive(Deserialize, Serialize)]
struct Contents {
    /// Day of the check, as `2026-11-29`.
    date: String,
    /// BLAKE3 of the sources.
    sources: String,
}

impl CheckRecord {
    /// Unless these very sources passed before, runs a check.
    ///
    /// # Errors
    /// A message when a source cannot be read, and those of the check.
    pub fn unless_passed(
        &self,
        check: impl FnOnce() -> Result<Vec<String>, String>,
    ) -> Result<Vec<String>, String> {
        let record = fs::read_to_string(root().join(self.file)).ok();
        let record: Option<Contents> = record.and_then(|text| toml::from_str(&text).ok());
        match record {
            Some(Contents { date, sources }) if sources == self.hash()? => {
                println!("{}: the sources are those that passed on {date}", self.command);
                Ok(Vec::new())
            }
            _ => check(),
        }
    }

    /// Writes that the sources passed today.
    ///
    /// # Errors
    /// A message when a source cannot be read, or the record not written.
    pub fn write(&self) -> Result<(), String> {
        let date = Command::new("date").args(["-u", "+%F"]).output();
        let date = date.map_err(|error| format!("date: {error}"))?;
        let date = String::from_utf8_lossy(&date.stdout).trim().to_string();
        let record = Contents { date, sources: self.hash()? };
        let record = toml::to_string(&record).map_err(|error| error.to_string())?;
        let head = format!(
            "# Written by `cargo xtask {}`, which CI leaves out while the sources are these.",
            self.command
        );
        fs::write(root().join(self.file), format!("{head}\n{record}"))
            .map_err(|error| format!("{}: {error}", self.file))
    }

    /// BLAKE3 of the names and the contents of all sources.
    fn hash(&self) -> Result<String, String> {
        let mut files = Vec::new();
        for source in self.sources {
            self.collect(&root().join(source), &mut files).map_err(|error| format!("{source}: {error}"))?;
        }
        files.sort();
        let mut hasher = blake3::Hasher::new();
        for file in files {
            let name = file.strip_prefix(root()).unwrap_or(&file).to_string_lossy().into_owned();
            let text = fs::read(&file).map_err(|error| format!("{name}: {error}"))?;
            hasher.update(format!("{name}\0{}\0", text.len()).as_bytes()).update(&text);
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    fn collect(&self, path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
        if path.is_dir() {
            return fs::read_dir(path)?.try_for_each(|entry| self.collect(&entry?.path(), files));
        }
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if self.endings.is_empty() || self.endings.contains(&ending) {
            files.push(path.to_path_buf());
        }
        Ok(())
    }
}
