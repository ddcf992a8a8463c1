//! What every part of a run shares: threads, memory, the way to stop it, and who wants to know how far it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::crew::Limits;
use super::models::{Models, Tools};
use super::verify::{FileFacts, Verified};
use crate::error::Error;
use crate::read::OnRead;
use crate::tables::TableEngine;

/// Which share of the files this process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Number of this process, from 0.
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
    /// Whether the part `index` is this process's.
    pub fn owns(self, index: usize) -> bool {
        index % self.world_size.max(1) == self.rank
    }
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The segment's name: that of its last stage.
    pub segment: String,
    /// Parts done of this process's parts in this segment.
    pub parts_done: usize,
    /// Parts of this process in this segment.
    pub parts: usize,
    /// Documents read in this segment by this run.
    pub documents: u64,
    /// Bytes of text read in this segment by this run.
    pub text_bytes: u64,
}

/// Asked at named points (`batch`, `written`, `renamed`, `manifest`, `table`) with what is being done; true ends the run
/// there and then, leaving everything as a kill would.
pub type Stop = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Receives how far a run is, from any thread.
pub type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// Receives a line for people, from any thread.
pub type OnLine = Arc<dyn Fn(&str) + Send + Sync>;

/// How a run is carried out. Nothing here decides a byte of the results.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Threads; 0 for all cores.
    pub threads: usize,
    /// This process among several on the same folder.
    pub rank: Rank,
    /// Where the plans of whole tables run.
    pub engine: TableEngine,
    /// Ends the run early.
    pub stop: Option<Stop>,
    /// Asked before every access to an input file.
    pub on_read: Option<OnRead>,
    /// Called after every batch and part.
    pub progress: Option<OnProgress>,
    /// Receives what a stage has to say before it starts, such as its needs.
    pub say: Option<OnLine>,
    /// Opens the models that stages name; such stages cannot run without.
    pub models: Option<Arc<dyn Models>>,
}

/// A batch exists so many times while a stage makes a new one.
pub(crate) const COPIES: u64 = 4;

/// What a run works with.
#[derive(Clone)]
pub(crate) struct Env {
    pub threads: usize,
    pub memory_bytes: u64,
    /// Bytes of text that a batch may have.
    pub batch_bytes: u64,
    pub spill: PathBuf,
    pub seed: u64,
    pub options: RunOptions,
    pub pool: Arc<std::sync::OnceLock<rayon::ThreadPool>>,
    pub verified: Arc<Verified>,
}

impl Env {
    /// Rayon threads for stages that use them, made when the first asks.
    pub fn pool(&self) -> Result<&rayon::ThreadPool, Error> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build();
        let pool = pool.map_err(|e| Error::Threads { detail: e.to_string() })?;
        Ok(self.pool.get_or_init(|| pool))
    }

    /// Goes on, or ends the run as a kill would.
    pub fn point(&self, name: &str) -> Result<(), Error> {
        match &self.options.stop {
            Some(stop) if stop(name) => Err(Error::Interrupted { at: name.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Whether a file of the results still is what was written; if not, that is said.
    pub fn is_whole(&self, path: &Path, facts: &FileFacts) -> bool {
        let what = match self.verified.facts(path) {
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

    /// What this run offers to its stages.
    pub fn tools(&self) -> Tools {
        Tools { models: self.options.models.clone(), threads: self.threads }
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

    /// Threads, and as many batches as keep them busy and fit into the memory.
    pub fn limits(&self) -> Limits {
        let (bytes, largest) = (self.memory_bytes / COPIES, self.batch_bytes);
        Limits { threads: self.threads, batches: 3 * self.threads + 2, bytes, largest }
    }
}
