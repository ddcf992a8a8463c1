//! Manifests: provenance and contents of a part. A part is done if its manifest has the currently expected key and
//! the file matches the manifest; a whole-table stage is done if all its files match.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::part::PartFacts;
use super::tally::Tally;
use super::verify::{FileFacts, HashCache};
use crate::counters::Counters;
use crate::durable::{load, remove};
use crate::error::Error;
use crate::files::{Links, below_of};
use crate::kinds::Kind;

/// Incremented when the same recipe yields different bytes.
pub(crate) const VERSION: u32 = 3;

/// Manifest of one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Hash of the input, the stages with their options, and the version of the code.
    pub key: String,
    /// Input that it was made from.
    pub input: String,
    /// Contents of the part.
    pub facts: PartFacts,
    /// Tally of each stage of the segment, in order.
    pub stages: Vec<Tally>,
}

/// Manifest of a whole-table stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableManifest {
    /// Hash of all input parts, the options, and the version of the code.
    pub key: String,
    /// Number of output parts; 0 for a sink.
    pub parts: usize,
    /// All output files, by path relative to its folder.
    pub files: BTreeMap<String, FileFacts>,
    /// Tally of the stage.
    pub stage: Tally,
}

/// One part of a finished table.
#[derive(Clone, Debug, PartialEq)]
pub struct TablePart {
    /// The Parquet file.
    pub path: PathBuf,
    /// Contents of the part.
    pub facts: PartFacts,
}

/// Hashes everything that a result depends on.
pub(crate) struct KeyHasher(XxHash3_128);

impl KeyHasher {
    pub fn new() -> KeyHasher {
        KeyHasher(XxHash3_128::new()).with(env!("CARGO_PKG_VERSION")).with(&VERSION.to_string())
    }

    /// Adds a text with its length, so that boundaries count.
    pub fn with(mut self, text: &str) -> KeyHasher {
        self.0.write(&(text.len() as u64).to_le_bytes());
        self.0.write(text.as_bytes());
        self
    }

    /// Adds a file by name, size and modification time.
    pub fn with_file(self, path: &Path) -> Result<KeyHasher, Error> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::read(path, e))?;
        let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = changed.unwrap_or_default().as_nanos();
        Ok(self.with(&path.to_string_lossy()).with(&format!("{} {changed}", metadata.len())))
    }

    pub fn finish(self) -> String {
        format!("{:032x}", self.0.finish_128())
    }
}

/// Path of a part, such as `part-00012.parquet`.
pub(crate) fn part_path(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("part-{index:05}.parquet"))
}

/// Path of the manifest next to a part.
pub(crate) fn manifest_path(part: &Path) -> PathBuf {
    part.with_extension("json")
}

/// Path of a whole-table stage's manifest.
pub(crate) fn table_path(folder: &Path) -> PathBuf {
    folder.join("table.json")
}

/// Check that a file matches its manifest: [`Env::is_whole`](super::env::Env::is_whole), or a weaker check for files
/// that another process verifies.
pub(crate) type IsWhole<'a> = dyn Fn(&Path, &FileFacts) -> bool + Sync + 'a;

/// Weakest check of a file: its size.
pub(crate) fn has_size(path: &Path, facts: &FileFacts) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == facts.bytes)
}

/// Manifest of a finished part made with this key.
pub(crate) fn finished(part: &Path, key: &str, is_whole: &IsWhole<'_>) -> Option<Manifest> {
    let manifest: Manifest = load(&manifest_path(part))?;
    (manifest.key == key && is_whole(part, &manifest.facts.file())).then_some(manifest)
}

/// Manifest of a finished whole-table stage made with this key, all of whose files are intact.
pub(crate) fn finished_table(folder: &Path, key: &str, is_whole: &IsWhole<'_>) -> Option<TableManifest> {
    let manifest: TableManifest = load(&table_path(folder))?;
    if manifest.key != key {
        return None;
    }
    // Checks all files, so that every damaged one is reported.
    let broken = manifest.files.iter().filter(|(name, facts)| !is_whole(&folder.join(name), facts)).count();
    (broken == 0).then_some(manifest)
}

/// Files below a folder. Hidden files are not part of a result.
pub(crate) fn files_of(folder: &Path, hashes: &HashCache) -> Result<BTreeMap<String, FileFacts>, Error> {
    let mut counters = Counters::default();
    let found = below_of(folder, Links::Never, |_| false, |_| Some(Kind::Parquet), &mut counters)?;
    match counters.damage.pop() {
        Some(lost) => Err(Error::read(folder, std::io::Error::other(lost.detail))),
        None => found
            .into_iter()
            .map(|file| match hashes.facts(&file.path) {
                Ok(facts) => Ok((file.relative, facts)),
                Err(error) => Err(Error::read(&file.path, error)),
            })
            .collect(),
    }
}

/// Removes a manifest before the part it describes changes.
pub(crate) fn forget(part: &Path) -> Result<(), Error> {
    remove(&manifest_path(part))
}

/// All parts of a finished table in order, from their manifests.
pub(crate) fn parts_of(folder: &Path, count: usize) -> Result<Vec<TablePart>, Error> {
    (0..count)
        .map(|index| {
            let path = part_path(folder, index);
            let manifest: Option<Manifest> = load(&manifest_path(&path));
            let manifest = manifest.ok_or_else(|| Error::Missing { path: manifest_path(&path) })?;
            Ok(TablePart { path, facts: manifest.facts })
        })
        .collect()
}
