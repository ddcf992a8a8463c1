//! Many runs of a folder: found, summarised, and read while they go on.
//!
//! A log of 100,000 steps has 60 MB, so a run is first [`glance`]d at: the beginning of its log, its end, and samples
//! between. [`Run::follow`] then reads the whole log once, piece by piece, and later only what was added; of steps it
//! keeps [`Series`] of bounded size. What it has read is kept in an index next to the log, from which the next glance
//! goes on.

mod facts;
mod index;
mod sample;
mod series;
mod tags;
mod tail;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use facts::{Facts, State};
pub use series::{Along, Curve, Series, StepFacts};
pub use tags::{tags, write_tags};
pub use tail::Tail;

use crate::error::{Error, Result};

/// Name of a run's log.
const LOG: &str = "metrics.jsonl";
/// Folders below the given one in which runs are looked for.
const DEPTH: usize = 6;
/// Most runs of a folder.
const MOST_RUNS: usize = 5000;
/// Logs of which no more than this is unread are read to their end at a glance.
const SMALL: u64 = 1 << 20;
/// Bytes of a log for which its index is written again.
const INDEXED: u64 = 4 << 20;
/// A log that has not grown for this long belongs to a run that has stopped.
const QUIET: Duration = Duration::from_secs(180);

/// Finds the runs of a folder: every folder with a log, itself included, by path. Links are not followed.
pub fn find(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    look(root, DEPTH, &mut found);
    found.sort();
    found
}

fn look(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if found.len() >= MOST_RUNS {
        return;
    }
    if folder.join(LOG).is_file() {
        found.push(folder.to_path_buf());
        // Several adapters of one run have runs of their own below it; its data and checkpoints have none.
        if !folder.join("adapters").is_dir() {
            return;
        }
    }
    let Some(left) = depth.checked_sub(1) else { return };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let name = entry.file_name();
        let hidden = name.as_encoded_bytes().first() == Some(&b'.');
        if !hidden && name != "checkpoints" && name != "data" {
            look(&entry.path(), left, found);
        }
    }
}

/// Name of a run below a folder: its path there, or its own name for the folder itself.
pub fn name_below(root: &Path, run: &Path) -> String {
    let below = run.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty());
    let own = || run.canonicalize().ok().and_then(|run| Some(PathBuf::from(run.file_name()?)));
    below.map(Path::to_path_buf).or_else(own).unwrap_or_else(|| run.to_path_buf()).display().to_string()
}

/// A run that is followed.
#[derive(Debug)]
pub struct Run {
    /// Its folder.
    pub folder: PathBuf,
    /// Facts of its log.
    pub facts: Facts,
    /// Its steps.
    pub series: Series,
    /// Its tags.
    pub tags: BTreeSet<String>,
    /// Whether the whole log has been read; if not, `series` is a sample.
    pub is_whole: bool,
    tail: Tail,
    /// Bytes of the log that its index is about.
    indexed: u64,
    /// Facts and steps of the part read so far, until the whole log has been read.
    partial: Option<(Facts, Series)>,
}

/// Reads a run's log, after its index; of a log of which much is unread the beginning, the end and samples.
///
/// # Errors
/// A log that cannot be read.
pub fn glance(folder: &Path) -> Result<Run> {
    let log = folder.join(LOG);
    let bytes = fs::metadata(&log).map_err(|error| Error::read(&log, error))?.len();
    let (facts, series, indexed) = index::load(folder, &log).unwrap_or_default();
    let mut run = Run {
        folder: folder.to_path_buf(),
        facts: Facts::default(),
        series: Series::default(),
        tags: tags(folder),
        is_whole: false,
        tail: Tail::from(&log, indexed),
        indexed,
        partial: Some((facts, series)),
    };
    if bytes.saturating_sub(indexed) <= SMALL {
        while run.follow(usize::MAX)? {}
    } else {
        (run.facts, run.series) = sample::glance(&log)?;
    }
    Ok(run)
}

impl Run {
    /// Reads up to `most` bytes of the log that were not read before, and returns whether there is more. A log that was
    /// written again, as by a resumed run, is read from its beginning.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn follow(&mut self, most: usize) -> Result<bool> {
        if self.tail.is_replaced() {
            self.tail = Tail::new(&self.folder.join(LOG));
            self.partial = Some(Default::default());
            self.indexed = 0;
        }
        let (facts, series) = match &mut self.partial {
            Some((facts, series)) => (facts, series),
            None => (&mut self.facts, &mut self.series),
        };
        let more = self.tail.read(most, &mut |line| facts.read(line, series))?;
        if !more && let Some((facts, series)) = self.partial.take() {
            (self.facts, self.series, self.is_whole) = (facts, series, true);
        }
        Ok(more)
    }

    /// Writes the index of a log that was read to its end, if it is long and much was added since the last time.
    pub fn index(&mut self) {
        let bytes = self.tail.bytes();
        if self.is_whole && bytes.saturating_sub(self.indexed) > INDEXED.min(bytes / 2).max(SMALL) {
            index::save(&self.folder, &self.folder.join(LOG), (&self.facts, &self.series), bytes);
            self.indexed = bytes;
        }
    }

    /// Whether the run goes on, has finished, or has stopped.
    pub fn state(&self) -> State {
        if self.facts.finished {
            return State::Finished;
        }
        let changed = fs::metadata(self.folder.join(LOG)).and_then(|of| of.modified());
        let age = changed.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_none_or(|age| age < QUIET) { State::Running } else { State::Stopped }
    }
}

#[cfg(test)]
mod tests;
