//! The parts that a run is made of, and its interface to the program around it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fathom_base::Flow;
use fathom_base::metrics::{MetricsWriter, events};
use fathom_tensor::Device;

use crate::checkpoint::Base;
use crate::error::Result;
use crate::plan::StageSettings;
use crate::recipe::Recipe;
use crate::source::Sources;
use crate::step::Trainer;

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All stages are done.
    Finished,
    /// Stopped on request; a checkpoint was saved.
    Interrupted,
}

/// Callbacks to the program around a run; the defaults continue the run.
pub trait Hooks {
    /// A stage begins, or continues after a resume.
    fn stage(&mut self, _stage: &events::Stage, _settled: &StageSettings) {}
    /// A problem that does not end the run.
    fn warn(&mut self, _text: &str) {}
    /// A step ended.
    fn step(&mut self, _step: &events::Step, _stage_step: u64, _stage_steps: Option<u64>) -> Result<()> {
        Ok(())
    }
    /// A stage ended after `step` updates; the current model is saved. Called again if the run is killed before this
    /// returns, or stops here ([`Flow::Stop`], which all ranks return together).
    fn stage_done(
        &mut self,
        _trainer: &Trainer,
        _index: usize,
        _step: u64,
        _metrics: &mut MetricsWriter,
    ) -> Result<Flow> {
        Ok(Flow::Continue)
    }
}

/// Time for stages without a number of steps. Used by the first rank.
pub trait StageTime {
    /// The clock, in seconds.
    fn now_s(&self) -> f64;
    /// Seconds left for the steps of a stage, `spent_s` of which were used before this process entered it.
    fn left_s(&self, stage: usize, spent_s: f64) -> f64;
    /// Predicted seconds of a stage's step, if known before the first.
    fn step_s(&self, _stage: usize) -> Option<f64> {
        None
    }
}

/// Creates a rank's part of the model on a device in its state before the first step. Of several adapters over one
/// base, the first creates the base, and the others are created over it.
pub type Rebuild<'a> = &'a dyn Fn(&Device, Option<&Trainer>) -> Result<Trainer>;

/// Parts of a run.
pub struct RunParts<'a> {
    /// Its recipe.
    pub recipe: &'a Recipe,
    /// Its folder.
    pub folder: &'a Path,
    /// The model, as initialised or imported.
    pub trainer: Trainer,
    /// Its data.
    pub sources: Box<dyn Sources + 'a>,
    /// Its log.
    pub metrics: MetricsWriter,
    /// Time of stages without steps; `None` on ranks that do not decide, or if all stages have steps.
    pub time: Option<&'a dyn StageTime>,
    /// Number of ranks that share this rank's disk, including itself.
    pub disk_sharers: usize,
    /// Flag set from outside to save and stop.
    pub stop: &'a AtomicBool,
    /// Number of checkpoints asked for from outside so far; `None` if no one asks.
    pub save_requests: Option<&'a AtomicU64>,
    /// Recreates the trainer of a failed rank; `None`: a failure ends the run.
    pub rebuild: Option<Rebuild<'a>>,
    /// The base model of checkpoints that have the trained part only; `None`: checkpoints have the whole model.
    pub base: Option<Base>,
}
