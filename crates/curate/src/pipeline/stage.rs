//! The interfaces of stages: row-wise, and over the whole corpus.

use std::path::PathBuf;

use fathom_prose::extract::Extraction;

use super::barrier::Job;
use super::batch::Batch;
use super::models::{ModelKind, Tools};
use super::share_files::ShareOf;
use super::tally::Tally;
use crate::error::Error;

/// A row-wise stage: its effect on a document depends on that document alone. It has no state except what it opens
/// while its segment runs, so batches can pass through it on any thread in any order.
pub trait Stage: Send + Sync {
    /// Drops, changes or annotates documents, preserving their order. The runner counts input and output, the stage
    /// calls [`Tally::drop`] for each document that it drops.
    ///
    /// # Errors
    /// Only errors that make the whole run pointless: a missing model, a column that an earlier stage should have
    /// added.
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error>;

    /// Files whose contents affect the result, such as models and lists.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Folders and kinds of the models it needs.
    fn models(&self) -> Vec<(PathBuf, ModelKind)> {
        Vec::new()
    }

    /// Acquires resources for batches with documents; empty batches may be processed before.
    ///
    /// # Errors
    /// A resource cannot be opened.
    fn begin(&self, _tools: &Tools) -> Result<(), Error> {
        Ok(())
    }

    /// Releases the resources of [`Stage::begin`]. Called whether or not the segment completed.
    fn end(&self) {}
}

/// A stage that needs the whole table: deduplication, shuffling, blending, tokenizing.
pub trait Barrier: Send + Sync {
    /// Reads the parts of `job` and writes new ones into its folder.
    ///
    /// # Errors
    /// A part cannot be read, the disk is full, or memory is too small.
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error>;

    /// Checks the columns of its future input table, given as an empty batch, before anything is read.
    ///
    /// # Errors
    /// The table will lack a required column.
    fn rehearse(&self, _empty: &Batch) -> Result<(), Error> {
        Ok(())
    }

    /// Per-part work that other ranks can do, as one file per part; the stage finds the files in [`Job::shares`].
    fn share(&self) -> Option<Box<ShareOf<'_>>> {
        None
    }

    /// Files whose contents affect the result.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Folders and kinds of the models it needs.
    fn models(&self) -> Vec<(PathBuf, ModelKind)> {
        Vec::new()
    }
}

/// A stage of a recipe, ready to run.
pub enum Work {
    /// Extraction of text from records; only as the first stage.
    Extract(Box<Extraction>),
    /// Row-wise; consecutive stages of this kind are fused.
    Rows(Box<dyn Stage>),
    /// Whole-table, producing a new table.
    Table(Box<dyn Barrier>),
    /// Whole-table, producing files for other programs; the next stage reads the same table as this one.
    Sink(Box<dyn Barrier>),
}

impl Work {
    /// Files whose contents affect the result.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Work::Extract(_) => Vec::new(),
            Work::Rows(stage) => stage.files(),
            Work::Table(stage) | Work::Sink(stage) => stage.files(),
        }
    }
}
