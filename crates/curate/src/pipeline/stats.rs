//! Statistics of a curation, assembled from the manifests: the contents of `stats.json` and the report.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::runner::SecondsLine;
use super::tally::Tally;
use crate::error::Error;

/// Statistics of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageStats {
    /// Name of the stage.
    pub name: String,
    /// Kind of stage.
    pub kind: String,
    /// Table that its segment writes.
    pub table: String,
    /// Tally of the stage.
    pub tally: Tally,
    /// Seconds summed over all threads, for the parts with recorded times.
    pub seconds: f64,
}

impl StageStats {
    /// Input bytes of text per second and thread; `None` if no time was recorded.
    pub fn bytes_per_s(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.tally.bytes_in as f64 / self.seconds)
    }
}

/// Statistics of one table on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableStats {
    /// Name of the table, which is that of the last stage before it.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Number of Parquet files.
    pub parts: usize,
    /// Number of documents.
    pub documents: u64,
    /// UTF-8 bytes of their text.
    pub text_bytes: u64,
    /// Bytes on disk.
    pub file_bytes: u64,
}

/// Statistics of a curation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Stages in order; the first is `read`.
    pub stages: Vec<StageStats>,
    /// The tables in order.
    pub tables: Vec<TableStats>,
    /// Number of threads of the last run.
    pub threads: usize,
    /// Wall time of the last run, which may have done only part of the work.
    pub wall_s: f64,
}

impl Stats {
    /// Number of documents read, including damaged ones but not files that were never opened.
    pub fn documents_read(&self) -> u64 {
        let Some(read) = self.stages.first().map(|stage| &stage.tally) else { return 0 };
        let unopened = ["no_reader", "over_budget"].iter().filter_map(|reason| read.dropped.get(*reason));
        let unopened = unopened.map(|dropped| dropped.documents);
        read.documents_in.saturating_sub(unopened.sum::<u64>())
    }

    /// Number of documents after the last stage.
    pub fn documents_kept(&self) -> u64 {
        self.stages.last().map_or(0, |stage| stage.tally.documents_out)
    }
}

/// Seconds by table and part, each by stage: the last line of a part wins, torn lines are ignored.
pub(crate) fn seconds(out: &std::path::Path) -> Result<BTreeMap<(String, usize), Vec<f64>>, Error> {
    let mut seconds = BTreeMap::new();
    let folder = out.join("seconds");
    let Ok(listing) = std::fs::read_dir(&folder) else { return Ok(seconds) };
    let mut files: Vec<PathBuf> = listing.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|e| Error::read(&file, e))?;
        for line in text.lines() {
            if let Ok(line) = serde_json::from_str::<SecondsLine>(line) {
                seconds.insert((line.table, line.part), line.seconds);
            }
        }
    }
    Ok(seconds)
}
