//! What a stage is: row-wise, or over the whole corpus.

use std::path::PathBuf;

use super::barrier::Job;
use super::batch::Batch;
use super::models::{ModelKind, Tools};
use super::shares::ShareOf;
use super::tally::Tally;
use crate::error::Error;
use fathom_prose::extract::Extraction;

/// A row-wise stage: what it does to a document depends on that document alone. It has no state, save what it opens while
/// its segment runs, so that batches can pass it on any thread in any order.
pub trait Stage: Send + Sync {
    /// Drops, changes or describes documents; order stays. The runner counts what goes in and out, the stage calls
    /// [`Tally::drop`] for each document that it leaves out.
    ///
    /// # Errors
    /// Only what makes the whole run pointless: a missing model, a column that a stage before should have added.
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error>;

    /// Files whose content decides what the stage does, such as models and lists.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Folders of the models that it will ask for.
    fn models(&self) -> Vec<(PathBuf, ModelKind)> {
        Vec::new()
    }

    /// Opens what batches with documents need; those without may come before.
    ///
    /// # Errors
    /// What cannot be opened.
    fn begin(&self, _tools: &Tools) -> Result<(), Error> {
        Ok(())
    }

    /// Closes what [`Stage::begin`] opened. Called whether the segment came to its end or not.
    fn end(&self) {}
}

/// A stage that needs the whole table: deduplication, shuffling, blending, tokenising.
pub trait Barrier: Send + Sync {
    /// Reads the parts of `job` and writes new ones into its folder.
    ///
    /// # Errors
    /// A part that cannot be read, a full disk, too little memory.
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error>;

    /// Looks at the columns of the table that it will be given, in a batch without documents, before anything is read.
    ///
    /// # Errors
    /// A column that it needs and the table will not have.
    fn rehearse(&self, _empty: &Batch) -> Result<(), Error> {
        Ok(())
    }

    /// Work on one document after the other that other ranks can do, as a file for each part; [`Job::shares`] has the files.
    fn share(&self) -> Option<Box<ShareOf<'_>>> {
        None
    }

    /// Files whose content decides what the stage does.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Folders of the models that it will ask for.
    fn models(&self) -> Vec<(PathBuf, ModelKind)> {
        Vec::new()
    }
}

/// A stage of a recipe, ready to run.
pub enum Work {
    /// How records become text; only at the beginning.
    Extract(Box<Extraction>),
    /// Row-wise; neighbours of this kind are fused.
    Rows(Box<dyn Stage>),
    /// Over the whole table, giving a new one.
    Table(Box<dyn Barrier>),
    /// Over the whole table, giving files for others; the next stage reads the table that this one read.
    Sink(Box<dyn Barrier>),
}

impl Work {
    /// Files whose content decides what the stage does.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Work::Extract(_) => Vec::new(),
            Work::Rows(stage) => stage.files(),
            Work::Table(stage) | Work::Sink(stage) => stage.files(),
        }
    }
}
