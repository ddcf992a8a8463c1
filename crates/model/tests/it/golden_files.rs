//! Golden cases in `tests/golden`; `oracle/README.md` describes their contents.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The folder of all cases.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// All cases, by name.
pub fn cases() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root()).unwrap();
    let mut cases: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    cases.sort();
    assert!(cases.len() >= 44, "only {} golden cases", cases.len());
    cases
}

/// The folders below one of `tests`, by name.
pub fn folders(name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("..").join(name)).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

/// A JSON object of a case.
pub fn object(file: &Path) -> Map<String, Value> {
    let text = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The name of a case.
pub fn name(case: &Path) -> String {
    case.file_name().unwrap().to_string_lossy().into_owned()
}
