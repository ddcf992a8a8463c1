//! Shared state of a run: threads, memory, interruption and progress reporting.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::crew::Limits;
use super::functions::Functions;
use super::models::{Models, Tools};
use super::verify::{FileFacts, HashCache};
use crate::error::Error;
use crate::read::OnRead;
use crate::tables::TableEngine;

/// This process's share of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub world_size: usize,
}

impl Default for Rank {
    fn default() -> Self {
        Rank { rank: 0, world_size: 1 }
    }
}

impl Rank {
    /// Returns true if part `index` belongs to this process.
    pub fn owns(self, index: usize) -> bool {
        index % self.world_size.max(1) == self.rank
    }
}

/// Progress of a run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Progress {
    /// Name of the segment, which is that of its last stage.
    pub segment: String,
    /// Parts of this process completed in this segment.
    pub parts_done: usize,
    /// Total parts of this process in this segment.
    pub parts: usize,
    /// Documents read in this segment by this run.
    pub documents: u64,
    /// Bytes of text read in this segment by this run.
    pub text_bytes: u64,
}

/// Called at named points (`batch`, `written`, `renamed`, `manifest`, `table`); returning true ends the run
/// immediately, leaving everything as a kill would.
pub type Stop = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Receives progress updates from any thread.
pub type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// Receives human-readable lines from any thread.
pub type OnLine = Arc<dyn Fn(&str) + Send + Sync>;

/// Execution options of a run. None of them affects the bytes of the results.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Number of threads; 0 for all cores.
    pub threads: usize,
    /// Rank of this process among several on the same folder.
    pub rank: Rank,
    /// Engine that runs whole-table plans.
    pub engine: TableEngine,
    /// Callback that can end the run early.
    pub stop: Option<Stop>,
    /// Called before every access to an input file.
    pub on_read: Option<OnRead>,
    /// Called after every batch and part.
    pub progress: Option<OnProgress>,
    /// Receives messages that a stage prints before it starts, such as its resource needs.
    pub say: Option<OnLine>,
    /// Loader for the models that stages name; required by such stages.
    pub models: Option<Arc<dyn Models>>,
    /// Functions of the caller that stages name; required by such stages.
    pub functions: Option<Arc<dyn Functions>>,
}

/// Peak number of copies of a batch while a stage produces a new one.
pub(crate) const COPIES: u64 = 4;

/// Environment of a run.
#[derive(Clone)]
pub(crate) struct Env {
    pub threads: usize,
    pub memory_bytes: u64,
    /// Maximum bytes of text in a batch.
    pub batch_bytes: u64,
    pub spill: PathBuf,
    pub seed: u64,
    pub options: RunOptions,
    pub pool: Arc<std::sync::OnceLock<rayon::ThreadPool>>,
    pub hashes: Arc<HashCache>,
}

impl Env {
    /// Rayon pool for stages that use one, created on first use.
    pub fn pool(&self) -> Result<&rayon::ThreadPool, Error> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build();
        let pool = pool.map_err(|e| Error::Threads { detail: e.to_string() })?;
        Ok(self.pool.get_or_init(|| pool))
    }

    /// Interruption point: returns, or ends the run as a kill would.
    pub fn point(&self, name: &str) -> Result<(), Error> {
        match &self.options.stop {
            Some(stop) if stop(name) => Err(Error::Interrupted { at: name.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Returns true if a result file is unchanged since it was written; reports it otherwise.
    pub fn is_whole(&self, path: &Path, facts: &FileFacts) -> bool {
        let what = match self.hashes.facts(path) {
            Ok(now) if now == *facts => return true,
            Ok(now) if now.bytes != facts.bytes => format!("it has {} bytes, not {}", now.bytes, facts.bytes),
            Ok(_) => "its hash is another".to_owned(),
            Err(error) => error.to_string(),
        };
        self.say(&format!(
            "{} has changed since it was written ({what}); it will be made again",
            path.display()
        ));
        false
    }

    /// Tools that this run offers to its stages.
    pub fn tools(&self) -> Tools {
        let RunOptions { models, functions, .. } = self.options.clone();
        Tools { models, functions, threads: self.threads }
    }

    pub fn progress(&self, progress: &Progress) {
        if let Some(tell) = &self.options.progress {
            tell(progress);
        }
    }

    pub fn say(&self, text: &str) {
        if let Some(say) = &self.options.say {
            say(text);
        }
    }

    /// Concurrency limits: as many batches as keep the threads busy and fit into memory.
    pub fn limits(&self) -> Limits {
        let (bytes, largest) = (self.memory_bytes / COPIES, self.batch_bytes);
        Limits { threads: self.threads, batches: 3 * self.threads + 2, bytes, largest }
    }
}
