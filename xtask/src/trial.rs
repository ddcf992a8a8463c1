//! Measurements that run the program over several seeds, each in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Seeds of a measurement.
pub const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// The runs of one seed.
pub struct Trial<'a> {
    pub binary: &'a Path,
    pub folder: &'a Path,
    pub seed: u64,
}

/// Makes the runs of every seed in a new folder, which is removed after them.
pub fn over_seeds<T>(
    name: &str,
    binary: &Path,
    each: impl Fn(&Trial<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    // The runs use folders of their own, so the path must be absolute.
    let binary = binary.canonicalize().map_err(|error| format!("{}: {error}", binary.display()))?;
    SEEDS
        .map(|seed| {
            let folder = std::env::temp_dir().join(format!("fathom-{name}-{}-{seed}", std::process::id()));
            fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
            let found = each(&Trial { binary: &binary, folder: &folder, seed });
            let _ = fs::remove_dir_all(&folder);
            found
        })
        .collect()
}

impl Trial<'_> {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes rows as JSON lines.
    pub fn write(&self, name: &str, rows: impl Iterator<Item = Value>) -> Result<(), String> {
        let text: String = rows.map(|row| format!("{row}\n")).collect();
        fs::write(self.path(name), text).map_err(|error| error.to_string())
    }

    /// The rows of a file of JSON lines.
    pub fn lines(&self, name: &str) -> Result<Vec<Value>, String> {
        let path = self.path(name);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(rows(&text))
    }

    /// Runs the program in the folder, and returns its standard output.
    pub fn fathom(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.binary);
        command.args(words).current_dir(self.folder).stdin(Stdio::null());
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("fathom {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)))
    }
}

/// JSON lines of a text; others are left out.
pub fn rows(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
