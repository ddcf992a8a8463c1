//! What a run is given, and what the program around it sees of it.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use fathom_base::Flow;
use fathom_base::metrics::{MetricsWriter, events};
use fathom_tensor::Device;

use crate::checkpoint::Base;
use crate::error::Result;
use crate::plan::Settled;
use crate::recipe::Recipe;
use crate::source::Sources;
use crate::step::Trainer;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All stages are done.
    Finished,
    /// Asked to stop; a checkpoint was saved.
    Interrupted,
}

/// What the program around a run sees of it; what it does not say anything about goes on.
pub trait Hooks {
    /// A stage begins, or goes on after a resume.
    fn stage(&mut self, _stage: &events::Stage, _settled: &Settled) {}
    /// Something is not as it should be, and the run goes on.
    fn warn(&mut self, _text: &str) {}
    /// A step ended.
    ///
    /// # Errors
    /// Ends the run.
    fn step(&mut self, _step: &events::Step, _stage_step: u64, _stage_steps: Option<u64>) -> Result<()> {
        Ok(())
    }
    /// A stage ended after `step` updates; the model is as it is now, and saved. Called again if the run is killed before it
    /// returns, or stops here ([`Flow::Stop`], which all ranks say together).
    ///
    /// # Errors
    /// Ends the run.
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

/// The time that a run gives to stages which have no number of steps. The first rank asks it.
pub trait StageTime {
    /// What its clock shows, in seconds.
    fn now_s(&self) -> f64;
    /// Seconds that the steps of a stage may still take; steps of it took `spent_s` before this process entered it.
    fn left_s(&self, stage: usize, spent_s: f64) -> f64;
    /// Seconds of a step of a stage, by what is known before it makes one.
    fn step_s(&self, _stage: usize) -> Option<f64> {
        None
    }
}

/// Makes a rank's part of the model on a device as it was before the first step: of several adapters over one base, which the first has
/// made, each but the first over its.
pub type Rebuild<'a> = &'a dyn Fn(&Device, Option<&Trainer>) -> Result<Trainer>;

/// What a run is made of.
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
    /// The time of stages without steps; `None` where another rank knows it, or all stages have their steps.
    pub time: Option<&'a dyn StageTime>,
    /// Ranks that share the disk behind this one's memory, itself among them.
    pub disk_sharers: usize,
    /// Set from outside to save and stop.
    pub stop: &'a AtomicBool,
    /// Makes the trainer again, for ranks that fail; `None`: a failure ends the run.
    pub rebuild: Option<Rebuild<'a>>,
    /// Checkpoints have the trained part alone, over this model; `None`: the whole model.
    pub base: Option<Base>,
}
