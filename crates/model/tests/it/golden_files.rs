//! Golden cases in `tests/golden`; `oracle/README.md` describes their contents.

use std::path::{Path, PathBuf};

use fathom_model::{LoadedModel, Model, SafeTensors, Source, load, open_any};
use fathom_tensor::DType;
use serde_json::{Map, Value};

use crate::golden::cpu;

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

/// A folder's model in f32, on one thread.
pub fn loaded(folder: &Path) -> LoadedModel {
    let device = cpu(1, None);
    let opened = open_any(folder).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    LoadedModel { device, model, params }
}

/// The numbers of a tensor of a file in f32.
pub fn floats(source: &SafeTensors, name: &str) -> Vec<f32> {
    let rows = source.shape(name).unwrap_or_else(|| panic!("no {name}"))[0];
    let mut bytes = Vec::new();
    source.read_rows(name, 0..rows, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The largest of the absolute values.
pub fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| largest.max(value.abs()))
}
