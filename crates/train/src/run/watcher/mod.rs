//! The watcher: the run's log, the memory, disk traffic and time of steps, ranks that are slow or compute different
//! results, and recoveries. It reads the model without changing it. `steps` logs steps, `closely` and `lanes` record
//! one step of each stage, `corrupt` compares the weights of ranks, and `stragglers` scores ranks.

mod closely;
mod corrupt;
mod lanes;
mod steps;
mod stragglers;

use std::path::PathBuf;
use std::time::Instant;

use fathom_base::metrics::{Event, MetricsWriter, events};
use fathom_grad::{ParamId, Params};
use fathom_model::Spec;
use fathom_tensor::mesh::{Axis, Mesh};
use fathom_tensor::{Device, PoolUsage};

use super::{Hooks, Progress};
use crate::error::Result;
use crate::plan::Plan;
use crate::recipe::Recipe;
use crate::step::Trainer;
pub(super) use steps::{CompletedStep, Look, Pending, StepFigures};
use stragglers::Stragglers;

/// Observes a run; see the module.
pub(super) struct Watcher<'a> {
    recipe: &'a Recipe,
    /// This rank's own folder, for traces.
    folder: PathBuf,
    metrics: MetricsWriter,
    /// True if the memory timeline of the stage's steps is short enough to record.
    recordable: bool,
    /// Planned memory of the stage's steps.
    planned: PoolUsage,
    /// The step whose results have not been read yet.
    pending: Option<Pending>,
    recovering: Option<PendingRecovery>,
    stragglers: Stragglers,
    /// Seconds of this rank's last step without waits for others.
    busy_s: f64,
}

/// A recovery whose first step is still to come.
pub(super) struct PendingRecovery {
    /// Its start.
    pub started: Instant,
    /// The failure.
    pub why: String,
    /// Ranks that were rebuilt.
    pub lost: Vec<usize>,
}

impl<'a> Watcher<'a> {
    /// Continues a log after a step; `folder` is this rank's own.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn open(
        recipe: &'a Recipe,
        folder: PathBuf,
        mut metrics: MetricsWriter,
        mesh: &Mesh,
        resumed: Option<u64>,
    ) -> Result<Watcher<'a>> {
        metrics.truncate_after_step(resumed.unwrap_or(0))?;
        if let Some(step) = resumed {
            let unix_s = unix_s();
            metrics.write(&Event::Resume(events::Resume { step, unix_s }))?;
        }
        Ok(Watcher {
            recipe,
            folder,
            metrics,
            recordable: true,
            planned: PoolUsage::default(),
            pending: None,
            recovering: None,
            stragglers: Stragglers::new(*mesh.grid()),
            busy_s: 0.0,
        })
    }

    /// The log, for measurements between steps.
    pub fn log(&mut self) -> &mut MetricsWriter {
        &mut self.metrics
    }

    /// The log, after the last stage.
    pub fn into_log(self) -> MetricsWriter {
        self.metrics
    }

    /// Waits until the log is on disk.
    pub fn sync(&mut self) -> Result<()> {
        Ok(self.metrics.sync()?)
    }

    /// Logs a saved checkpoint, if there is one.
    pub fn saved(&mut self, saved: Option<events::Checkpoint>) -> Result<()> {
        saved.map_or(Ok(()), |saved| Ok(self.metrics.write(&Event::Checkpoint(saved))?))
    }

    /// The event of a stage that begins after a step.
    pub fn stage_event(&self, index: usize, step: u64, steps: Option<u64>, spec: &Spec) -> events::Stage {
        let table = &self.recipe.stage[index];
        events::Stage {
            name: table.name.clone(),
            index: index as u64,
            seq_len_tokens: table.seq_tokens as u64,
            start_step: step,
            steps: steps.unwrap_or(0),
            rope: describe_rope(spec),
            drill_share: 0.0,
        }
    }

    /// Drops the state of the previous stage, whose steps have other durations.
    pub fn enter(&mut self, mesh: &Mesh) {
        self.forget_step();
        self.stragglers = Stragglers::new(*mesh.grid());
    }

    /// Sets the plan to compare the stage's steps with.
    pub fn expect(&mut self, plan: &Plan) {
        self.planned = plan.usage.clone();
    }

    /// Drops a step whose results have not been read.
    pub fn forget_step(&mut self) {
        self.pending = None;
    }

    /// Seconds of this rank's last step without waits for others.
    pub fn busy_s(&self) -> f64 {
        self.busy_s
    }

    /// Scores the ranks by the seconds of their last steps; the first rank reports.
    pub fn score(&mut self, mesh: &Mesh, step: u64, busy_s: &[f64], hooks: &mut dyn Hooks) -> Result<()> {
        if mesh.grid().ranks() == 1 || mesh.rank() > 0 {
            return Ok(());
        }
        let Some((event, warnings)) = self.stragglers.add(step, busy_s) else {
            return Ok(());
        };
        warnings.iter().for_each(|text| hooks.warn(text));
        Ok(self.metrics.write(&Event::Ranks(event))?)
    }

    /// The weights to compare in a step, if it is due.
    pub fn compared(&self, trainer: &Trainer, step: u64) -> Option<Vec<ParamId>> {
        let every = self.recipe.mesh.check_every_steps;
        let due = self.compares(&trainer.device.mesh) && step.is_multiple_of(every);
        due.then(|| corrupt::compared(trainer))
    }

    /// Compares replicated weights between ranks. All ranks call this together.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`], the same on all ranks.
    pub fn compare(device: &Device, params: &Params, ids: &[ParamId], step: u64) -> Result<()> {
        corrupt::check(device, params, ids, step)
    }

    /// Compares replicated weights before they are copied or saved. All ranks call this together.
    ///
    /// # Errors
    /// Those of [`Watcher::compare`].
    pub fn compare_all(&self, trainer: &Trainer, step: u64) -> Result<()> {
        if !self.compares(&trainer.device.mesh) {
            return Ok(());
        }
        corrupt::check(&trainer.device, &trainer.params, &corrupt::compared(trainer), step)
    }

    /// True if ranks compare weights at all.
    fn compares(&self, mesh: &Mesh) -> bool {
        self.recipe.mesh.check_every_steps > 0 && mesh.size(Axis::Cp) * mesh.size(Axis::Dp) > 1
    }

    /// Truncates the log after the step to which the run has returned.
    pub fn go_back(&mut self, step: u64) -> Result<()> {
        Ok(self.metrics.truncate_after_step(step)?)
    }

    /// Notes a recovery, for [`Watcher::recovered`].
    pub fn recovering(&mut self, recovering: PendingRecovery) {
        self.recovering = Some(recovering);
    }

    /// Logs the duration of a recovery, once the first step after it begins.
    pub fn recovered(&mut self, progress: &Progress) -> Result<()> {
        let Some(PendingRecovery { started, why, lost }) = self.recovering.take() else { return Ok(()) };
        let event = events::Recovery {
            step: progress.step,
            seconds: started.elapsed().as_secs_f64(),
            lost: lost.into_iter().map(|rank| rank as u64).collect(),
            why,
        };
        Ok(self.metrics.write(&Event::Recovery(event))?)
    }
}

/// Description of a rotary setting, e.g. `yarn, base 500000, up to 32768 tokens`.
fn describe_rope(spec: &Spec) -> String {
    let Some(rope) = spec.ropes.first() else { return "none".into() };
    let kind = serde_json::to_value(&rope.scaling)
        .ok()
        .and_then(|value| Some(value.get("rope_type")?.as_str()?.to_string()));
    format!("{}, base {}, up to {} tokens", kind.unwrap_or_default(), rope.theta, spec.max_positions)
}

fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
