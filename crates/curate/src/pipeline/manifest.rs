//! Manifests: what a part was made from and what it holds. A part counts as done when its manifest has the key that is
//! expected now and the file is what the manifest says; a stage over the whole table, when all its files are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::part::PartFacts;
use super::tally::Tally;
use super::verify::{FileFacts, Verified};
use crate::counters::Counters;
use crate::durable::{load, remove};
use crate::error::Error;
use crate::files::{Kind, Links, below_of};

/// Raised when the same recipe gives other bytes.
pub(crate) const VERSION: u32 = 3;

/// The account of one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Hash of the input, the stages with their options, and the version of the code.
    pub key: String,
    /// What it was made from.
    pub input: String,
    /// What it holds.
    pub facts: PartFacts,
    /// What each stage of the segment did, in order.
    pub stages: Vec<Tally>,
}

/// The account of a stage over the whole table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableManifest {
    /// Hash of all parts that went in, the options, and the version of the code.
    pub key: String,
    /// Parts that came out; 0 for a sink.
    pub parts: usize,
    /// All files that it left, by path below its folder.
    pub files: BTreeMap<String, FileFacts>,
    /// What the stage did.
    pub stage: Tally,
}

/// A part of a finished table.
#[derive(Clone, Debug, PartialEq)]
pub struct TablePart {
    /// The Parquet file.
    pub path: PathBuf,
    /// What it holds.
    pub facts: PartFacts,
}

/// Collects what a result depends on.
pub(crate) struct KeyHasher(XxHash3_128);

impl KeyHasher {
    pub fn new() -> KeyHasher {
        KeyHasher(XxHash3_128::new()).with(env!("CARGO_PKG_VERSION")).with(&VERSION.to_string())
    }

    /// Adds a text; where it ends counts too.
    pub fn with(mut self, text: &str) -> KeyHasher {
        self.0.write(&(text.len() as u64).to_le_bytes());
        self.0.write(text.as_bytes());
        self
    }

    /// Adds a file by name, size and time of change.
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

/// `part-00012.parquet` of a table.
pub(crate) fn part_path(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("part-{index:05}.parquet"))
}

/// The manifest next to a part.
pub(crate) fn manifest_path(part: &Path) -> PathBuf {
    part.with_extension("json")
}

/// The manifest of a stage over the whole table.
pub(crate) fn table_path(folder: &Path) -> PathBuf {
    folder.join("table.json")
}

/// Whether a file is what its account says: [`Env::is_whole`](super::env::Env::is_whole), or less where another process has to
/// know.
pub(crate) type IsWhole<'a> = dyn Fn(&Path, &FileFacts) -> bool + Sync + 'a;

/// The least that is asked of a file: its size.
pub(crate) fn has_size(path: &Path, facts: &FileFacts) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == facts.bytes)
}

/// The manifest of a finished part that was made with this key.
pub(crate) fn finished(part: &Path, key: &str, is_whole: &IsWhole<'_>) -> Option<Manifest> {
    let manifest: Manifest = load(&manifest_path(part))?;
    (manifest.key == key && is_whole(part, &manifest.facts.file())).then_some(manifest)
}

/// The manifest of a finished stage over the whole table that was made with this key and whose files are all whole.
pub(crate) fn finished_table(folder: &Path, key: &str, is_whole: &IsWhole<'_>) -> Option<TableManifest> {
    let manifest: TableManifest = load(&table_path(folder))?;
    if manifest.key != key {
        return None;
    }
    // All are looked at, so that each that is not is reported.
    let broken = manifest.files.iter().filter(|(name, facts)| !is_whole(&folder.join(name), facts)).count();
    (broken == 0).then_some(manifest)
}

/// The files below a folder. Hidden ones belong to no result.
pub(crate) fn files_of(folder: &Path, verified: &Verified) -> Result<BTreeMap<String, FileFacts>, Error> {
    let mut counters = Counters::default();
    let found = below_of(folder, Links::Never, |_| false, |_| Some(Kind::Parquet), &mut counters)?;
    match counters.damage.pop() {
        Some(lost) => Err(Error::read(folder, std::io::Error::other(lost.detail))),
        None => found
            .into_iter()
            .map(|file| match verified.facts(&file.path) {
                Ok(facts) => Ok((file.relative, facts)),
                Err(error) => Err(Error::read(&file.path, error)),
            })
            .collect(),
    }
}

/// Removes a manifest before the part that it speaks of changes.
pub(crate) fn forget(part: &Path) -> Result<(), Error> {
    remove(&manifest_path(part))
}

/// All parts of a finished table in order, from the manifests.
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
