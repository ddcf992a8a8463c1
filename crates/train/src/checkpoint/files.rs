//! The files of a checkpoint: `state.json`, hashes, and publishing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::error::{Error, Result};
use crate::run::Progress;

/// `state.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// Of this layout.
    pub version: u32,
    pub progress: Progress,
    pub optimizer_step: u64,
    pub files: Files,
}

/// By name, inside the checkpoint's folder.
pub(super) type Files = BTreeMap<String, FileState>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileState {
    pub bytes: u64,
    pub xxh3_128: String,
}

impl FileState {
    pub fn of((bytes, hash): (u64, u128)) -> FileState {
        FileState { bytes, xxh3_128: format!("{hash:032x}") }
    }
}

/// What this binary writes; 1 had whole tensors only, and is read too.
pub(super) const VERSION: u32 = 2;
pub(super) const STATE: &str = "state.json";

pub(super) fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Of a checkpoint in the making.
pub(super) fn temporary_name(step: u64) -> String {
    format!(".{}.tmp", step_name(step))
}

/// Where a published checkpoint is while another of its step takes its place.
pub(super) fn aside_name(name: &str) -> String {
    format!(".{name}.old")
}

/// A small file's text; `None` if there is no such file, which alone says that it was never written.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        // Where the folder is a file, nothing can be either, and saves will say so.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(io("read", path)(error)),
    }
}

pub(super) fn read_state(folder: &Path) -> Result<State> {
    let path = folder.join(STATE);
    let text = fs::read_to_string(&path).map_err(io("read", &path))?;
    let state: State = serde_json::from_str(&text).map_err(|error| refuse(&path, error.to_string()))?;
    match state.version {
        1..=VERSION => Ok(state),
        other => Err(refuse(&path, format!("layout version {other}; this binary reads 1 to {VERSION}"))),
    }
}

pub(super) fn write_state(folder: &Path, state: &State) -> Result<()> {
    write_json(&folder.join(STATE), state)
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| refuse(path, error.to_string()))?;
    publish(path, text.as_bytes())
}

/// The files that one rank wrote, as it says.
pub(super) fn read_files(path: &Path) -> Result<Files> {
    let text = fs::read_to_string(path).map_err(io("read", path))?;
    serde_json::from_str(&text).map_err(|error| refuse(path, error.to_string()))
}

/// Compares this rank's share of the files, by bytes, with what was written; all of them for their sizes.
pub(super) fn verify(folder: &Path, files: &Files, rank: usize, ranks: usize) -> Result<()> {
    for (name, expected) in files {
        let path = folder.join(name);
        let bytes = fs::metadata(&path).map_err(io("read", &path))?.len();
        if bytes != expected.bytes {
            let what =
                format!("has {bytes} bytes, the checkpoint wrote {}: truncated or replaced", expected.bytes);
            return Err(refuse(&path, what));
        }
    }
    let mut loads = vec![0u64; ranks];
    for (name, expected) in files {
        let least = (0..ranks).min_by_key(|rank| loads[*rank]).unwrap_or_default();
        loads[least] += expected.bytes.max(1);
        let path = folder.join(name);
        if least == rank && hash_file(&path)? != *expected {
            return Err(refuse(&path, "was altered since the checkpoint wrote it (its hash differs)"));
        }
    }
    Ok(())
}

fn hash_file(path: &Path) -> Result<FileState> {
    let mut file = File::open(path).map_err(io("read", path))?;
    let mut hasher = XxHash3_128::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer).map_err(io("read", path))?;
        if read == 0 {
            return Ok(FileState::of((bytes, hasher.finish_128())));
        }
        hasher.write(&buffer[..read]);
        bytes += read as u64;
    }
}

/// Writes a small file whole or not at all.
pub(crate) fn publish(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(fathom_model::write_file(path, bytes)?)
}

pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(io("sync", folder))
}

pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io("remove", path)(error)),
        _ => Ok(()),
    }
}

pub(super) fn refuse(path: &Path, message: impl Into<String>) -> Error {
    Error::Checkpoint { path: path.to_path_buf(), message: message.into() }
}

pub(super) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: path.to_path_buf(), source }
}
