//! What a curation reads: files in the order of the recipe and of their names, small ones grouped into units.
//!
//! A unit is the piece of work that is done or not done: one unit gives one part. Which files make a unit depends on
//! names and sizes alone.

use std::path::{Path, PathBuf};

use super::batch::{Batch, Collector};
use super::histogram::Histogram;
use super::manifest::KeyHasher;
use super::recipe::Input;
use super::tally::Tally;
use crate::counters::Counters;
use crate::document::group_of;
use crate::error::Error;
use crate::files::{Entry, Kind, below};
use crate::read::{Documents, ReadOptions};

/// A unit holds at most so many files: a million tiny ones should still be spread over threads.
const MAX_FILES: usize = 4096;

/// Some files that are read one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// First file, and how many follow.
    pub name: String,
    /// The source of its documents.
    pub source: String,
    files: Vec<Entry>,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Unit {
    /// Adds the files to a key, by name, size and time of change.
    pub fn key(&self, mut key: KeyHasher) -> Result<KeyHasher, Error> {
        key = key.with(&self.source);
        for file in &self.files {
            key = key.with(&file.name).with_file(&file.path)?;
        }
        Ok(key)
    }

    /// Starts reading.
    pub fn open(&self, input: &Input) -> UnitReader {
        let options = ReadOptions {
            field: input.field.clone(),
            max_document_bytes: usize::try_from(input.max_document_bytes).unwrap_or(usize::MAX),
        };
        let documents =
            Documents::new(self.name.clone(), self.files.clone(), options, |_, _| None, Counters::default());
        UnitReader { documents, source: self.source.clone(), lengths: Histogram::default(), ended: false }
    }
}

/// Lists the units of an input, and counts what has no reader.
///
/// # Errors
/// A path that does not exist or cannot be listed, a named file without a reader, nothing to read at all.
pub(crate) fn list(input: &Input) -> Result<(Vec<Unit>, Counters), Error> {
    let mut counters = Counters::default();
    let mut units = Vec::new();
    for written in &input.paths {
        let (source, path) = split_name(written);
        let entries = entries(&path, &mut counters)?;
        group(entries, &source, input.unit_bytes, &mut units);
    }
    if let Some(most) = input.max_units {
        units.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    }
    if units.is_empty() {
        let looked_at = if input.paths.is_empty() {
            "no path at all (set input.paths)".to_string()
        } else {
            input.paths.join(", ")
        };
        return Err(Error::EmptyCorpus { looked_at, outcome: counters.summary() });
    }
    Ok((units, counters))
}

/// `name=path`, or a path that is its own name.
fn split_name(written: &str) -> (String, PathBuf) {
    if let Some((name, path)) = written.split_once('=') {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !name.is_empty() && name.chars().all(plain) && !Path::new(written).exists() {
            return (name.to_string(), PathBuf::from(path));
        }
    }
    (written.to_string(), PathBuf::from(written))
}

fn entries(path: &Path, counters: &mut Counters) -> Result<Vec<Entry>, Error> {
    let metadata = std::fs::metadata(path).map_err(|e| Error::read(path, e))?;
    let entry = |file: PathBuf, name: String, kind, bytes| {
        // Not `named`: what cannot be read is counted with its place, and the run goes on.
        Entry { path: file, group: group_of(&name), name, kind, bytes, named: false }
    };
    if metadata.is_dir() {
        let found = below(path, true, |_| false, counters)?;
        let all = found.into_iter().map(|file| {
            let name = path.join(&file.relative).display().to_string();
            entry(file.path, name, file.kind, file.bytes)
        });
        return Ok(all.collect());
    }
    let kind = Kind::of(path).ok_or_else(|| Error::UnknownExtension { path: path.to_path_buf() })?;
    Ok(vec![entry(path.to_path_buf(), path.display().to_string(), kind, metadata.len())])
}

fn group(entries: Vec<Entry>, source: &str, unit_bytes: u64, units: &mut Vec<Unit>) {
    let first = units.len();
    for entry in entries {
        match units[first..].last_mut() {
            Some(unit) if unit.bytes + entry.bytes <= unit_bytes && unit.files.len() < MAX_FILES => {
                unit.bytes += entry.bytes;
                unit.files.push(entry);
            }
            _ => units.push(Unit {
                name: entry.name.clone(),
                source: source.to_owned(),
                bytes: entry.bytes,
                files: vec![entry],
            }),
        }
    }
    for unit in &mut units[first..] {
        if unit.files.len() > 1 {
            unit.name = format!("{} and {} more", unit.name, unit.files.len() - 1);
        }
    }
}

/// The batches of a unit.
pub(crate) struct UnitReader {
    documents: Documents,
    source: String,
    lengths: Histogram,
    ended: bool,
}

impl UnitReader {
    /// The next batch; `None` behind the last.
    pub fn next(&mut self) -> Result<Option<Batch>, Error> {
        let mut batch = Collector::new(&[]);
        while !self.ended && !batch.is_full() {
            match self.documents.next() {
                Some(Ok(document)) => {
                    // A file that is one document has no number; its id is its name.
                    self.lengths.add(document.text.len() as f64);
                    batch.push(&document.source, &document.text, &self.source, &[]);
                }
                Some(Err(Error::EmptyCorpus { .. })) | None => self.ended = true,
                Some(Err(error)) => return Err(error),
            }
        }
        Ok((batch.rows() > 0).then(|| batch.take()))
    }

    /// What was read and what was lost.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally { lengths: self.lengths.clone(), ..Tally::default() };
        tally.add_reader(self.documents.counters());
        tally
    }
}
