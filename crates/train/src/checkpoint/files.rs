//! The files of a checkpoint: reading, hashes, and publishing.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use serde::Deserialize;
use serde::Serialize;
use twox_hash::XxHash3_128;

use crate::error::{Error, Result};

pub(super) const STATE: &str = "state.json";

pub(super) fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Folder name of an unfinished checkpoint.
pub(super) fn temporary_name(step: u64) -> String {
    format!(".{}.tmp", step_name(step))
}

/// Folder name of a published checkpoint while another of its step takes its place.
pub(super) fn aside_name(name: &str) -> String {
    format!(".{name}.old")
}

/// A small file's text; `None` only if the file does not exist and so was never written.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        // If the folder is a file, nothing can exist in it, and saves will report that.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(io("read", path)(error)),
    }
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| refuse(path, error.to_string()))?;
    publish(path, text.as_bytes())
}

/// The list of files that one rank wrote.
pub(super) fn read_files(path: &Path) -> Result<Files> {
    let text = fs::read_to_string(path).map_err(io("read", path))?;
    serde_json::from_str(&text).map_err(|error| refuse(path, error.to_string()))
}

/// Refuses a part (`model`, `moment1`) whose folder has files that the checkpoint did not write, or for which it wrote
/// none: only files compared by [`verify`] are read.
pub(super) fn check_listed(folder: &Path, files: &Files, part: &str) -> Result<()> {
    let place = folder.join(part);
    let mut found = 0;
    for entry in fs::read_dir(&place).map_err(io("list", &place))? {
        let name = entry.map_err(io("list", &place))?.file_name().to_string_lossy().into_owned();
        // Network file systems leave such names for deleted files that are still open.
        if name.starts_with('.') {
            continue;
        }
        if !files.contains_key(&format!("{part}/{name}")) {
            return Err(refuse(&place.join(name), format!("is no file that {STATE} lists")));
        }
        found += 1;
    }
    if found == 0 {
        Err(refuse(&place, format!("has none of the files that {STATE} should list")))
    } else {
        Ok(())
    }
}

/// Verifies the hashes of this rank's share of the files, divided by bytes, and the sizes of all of them.
pub(super) fn verify<'a>(
    folder: &Path,
    files: impl Iterator<Item = (&'a String, &'a FileState)> + Clone,
    rank: usize,
    ranks: usize,
) -> Result<()> {
    for (name, expected) in files.clone() {
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

/// Creates an empty folder that only its user can access, replacing any previous one.
pub(super) fn make_private(path: &Path) -> Result<()> {
    remove(path)?;
    let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
    parent.and_then(|()| DirBuilder::new().mode(0o700).create(path)).map_err(io("create", path))
}

/// Writes and syncs the future contents of a file under another name, for a later rename.
pub(super) fn announce(path: &Path, text: &str) -> Result<()> {
    let write = || {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written.map_err(io("write", path))
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
    move |source| fathom_base::Error::io(action, path, source).into()
}

/// Files by name within the checkpoint's folder.
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

/// The step in a checkpoint's name.
pub(super) fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}
