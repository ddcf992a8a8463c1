//! The training loop: stages of steps, with metrics, saves and resumption.
//!
//! A [`Run`] has three owners and passes plain values between them. The `stepper` has the model, the optimizer and the
//! data, and computes the next step. The `keeper` saves and restores checkpoints and copies of ranks' states. The
//! `watcher` has the log, the resources used by steps, and the health of ranks. The run itself knows its `progress` and
//! the order of their turns: begin, steps, leave. `pulse` is the message that ranks exchange after a step. `together`
//! runs the stages of one run, or of several that take turns, and `recover` returns them to an earlier step when a rank
//! fails.

mod keeper;
mod parts;
mod progress;
mod pulse;
mod recover;
mod stepper;
mod together;
mod watcher;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use fathom_base::Flow;
use fathom_base::metrics::{Event, MetricsWriter, events};
use fathom_tensor::mesh::Axis;

use crate::error::{Error, Result};
use crate::recipe::Recipe;
use crate::step::Trainer;
use keeper::Keeper;
pub use parts::{Hooks, Outcome, Rebuild, RunParts, StageTime};
pub use progress::{Amax, Progress, StageEnd};
use pulse::Pulse;
use stepper::{InStage, Stepper, Supplies};
pub use together::together;
use watcher::{CompletedStep, Pending, StepFigures, Watcher};

/// A run in its folder.
pub struct Run<'a> {
    recipe: &'a Recipe,
    /// Progress of the run.
    progress: Progress,
    stepper: Stepper<'a>,
    keeper: Keeper<'a>,
    watcher: Watcher<'a>,
    /// Flag set from outside to save and stop.
    stop: &'a AtomicBool,
    /// Number of checkpoints asked for from outside so far, and how many of them had been when this run last saved.
    save_requests: (Option<&'a AtomicU64>, u64),
}

/// A running stage.
struct RunningStage {
    stage: InStage,
    /// Whether, after the last step, some rank wanted to stop, and the first to save.
    agreed: [bool; 2],
}

impl<'a> Run<'a> {
    /// Opens a run, continuing from the last checkpoint of the folder, if there is one.
    ///
    /// # Errors
    /// A damaged checkpoint, by name.
    pub fn open(parts: RunParts<'a>) -> Result<Run<'a>> {
        let RunParts {
            recipe,
            folder,
            mut trainer,
            sources,
            metrics,
            time,
            disk_sharers,
            stop,
            save_requests,
            rebuild,
            base,
        } = parts;
        let (keeper, saved) = Keeper::open(recipe, folder, base, &mut trainer)?;
        trainer.round();
        let mesh = trainer.device.mesh.clone();
        let own = own_folder(folder, mesh.rank());
        let resumed = saved.as_ref().map(|saved| saved.step);
        let watcher = Watcher::open(recipe, own.clone(), metrics, &mesh, resumed)?;
        let supplies = Supplies { sources, rebuild, disk_sharers, time };
        let stepper = Stepper::new(recipe, own, trainer, supplies);
        let progress = saved.unwrap_or_default();
        let save_requests = (save_requests, 0);
        let mut run = Run { recipe, progress, stepper, keeper, watcher, stop, save_requests };
        run.reopen()?;
        Ok(run)
    }

    /// Returns to the stage that ended last if it has been given more steps.
    fn reopen(&mut self) -> Result<()> {
        let Some(progress) = self.progress.reopened(self.recipe) else { return Ok(()) };
        self.stepper.reopen(&progress)?;
        self.progress = progress;
        Ok(())
    }

    /// The reason why no checkpoint could be saved, if none ever was.
    pub fn nothing_saved(&self) -> Option<&str> {
        self.keeper.unsaved().filter(|_| self.keeper.latest().is_none())
    }

    /// Progress of the run.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Lets `work` use the model before the first step.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn before(&mut self, work: &mut dyn FnMut(&Trainer, &mut MetricsWriter) -> Result<()>) -> Result<()> {
        self.stepper.set_stages(self.progress.stage)?;
        work(self.stepper.trainer(), self.watcher.log())
    }

    /// The trained model and the log, after the last stage.
    pub fn finish(self) -> (Trainer, MetricsWriter) {
        (self.stepper.into_trainer(), self.watcher.into_log())
    }

    /// Runs all remaining stages.
    ///
    /// # Errors
    /// Anything that ends a run early; everything saved stays.
    pub fn train(&mut self, hooks: &mut dyn Hooks) -> Result<Outcome> {
        together(std::slice::from_mut(self), &mut [hooks])
    }

    /// The outcome of the run, or an error if a requested save failed.
    fn ended(&self, outcome: Outcome) -> Result<Outcome> {
        match (self.keeper.unsaved(), outcome) {
            (Some(why), Outcome::Interrupted) => {
                let step = self.progress.step;
                Err(Error::Save(format!("asked to stop after step {step}, which could not be saved: {why}")))
            }
            _ => Ok(outcome),
        }
    }

    /// Setup before the first stage.
    fn begin(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        // If no stage is left to enter, the model of the last stage is exported.
        self.stepper.set_stages(self.progress.stage)?;
        self.keeper.notes().iter().for_each(|note| hooks.warn(note));
        self.stepper.section("setup", None);
        self.keeper.copy_if_first(self.stepper.trainer(), &self.progress)
    }

    /// Setup before the steps of a stage.
    fn enter(&mut self, index: usize, hooks: &mut dyn Hooks) -> Result<RunningStage> {
        let Run { stepper, watcher, progress, .. } = self;
        watcher.enter(&stepper.device().mesh);
        let (stage, settled) = stepper.enter(index, progress)?;
        let event = watcher.stage_event(index, progress.step, stage.steps(), &stepper.trainer().model.spec);
        let event = events::Stage { drill_share: stepper.drill_share(index)?, ..event };
        hooks.stage(&event, &settled);
        if stage.steps() == Some(0) {
            hooks.warn(&format!(
                "stage {}: the time that is left holds no step of it, so the model is not trained on {} tokens",
                event.name, event.seq_len_tokens
            ));
        }
        if progress.stage_step == 0 {
            watcher.log().write(&Event::Stage(event))?;
            let budget = stepper.device().pool.budget();
            watcher.foretell(index, &stepper.subject(&stage), &settled.plan, progress.step, budget)?;
        }
        watcher.expect(&settled.plan);
        Ok(RunningStage { stage, agreed: [false; 2] })
    }

    /// One step of a stage, or the stage's outcome.
    fn turn(&mut self, running: &mut RunningStage, hooks: &mut dyn Hooks) -> Result<Option<Outcome>> {
        if running.stage.is_done(&self.progress) {
            self.read(running, hooks)?;
            return Ok(Some(Outcome::Finished));
        }
        // After the first step of a stage, ranks agree at the end of each step.
        if running.agreed[0] || (running.stage.is_fresh() && self.pulse()?.stop()) {
            self.read(running, hooks)?;
            self.save(hooks)?;
            return Ok(Some(Outcome::Interrupted));
        }
        self.stepper.section("step", self.recipe.mesh.step_timeout_s);
        self.step(running, hooks)?;
        self.stepper.decide(&mut running.stage, &self.progress)?;
        let pulse = self.pulse()?;
        let tokens = pulse.tokens(self.stepper.device().mesh.size(Axis::Dp));
        self.progress.tokens += tokens;
        self.watcher.counted(tokens, self.progress.tokens);
        self.watcher.score(&self.stepper.device().mesh, self.progress.step, &pulse.busy_s(), hooks)?;
        self.stepper.section("checkpoint", None);
        let saved = self.keeper.look_after_save(self.stepper.device(), pulse.written(), hooks)?;
        self.watcher.saved(saved)?;
        running.agreed = [pulse.stop(), pulse.save_is_due()];
        if running.stage.steps().is_some() && self.keeper.copy_is_due(self.progress.step) {
            self.read(running, hooks)?;
            self.copy(hooks)?;
        }
        if running.stage.steps().is_some() && running.agreed[1] {
            self.read(running, hooks)?;
            self.save(hooks)?;
        }
        Ok(None)
    }

    /// Computes the next step, and logs the previous one.
    fn step(&mut self, running: &mut RunningStage, hooks: &mut dyn Hooks) -> Result<()> {
        let (Run { stepper, keeper, watcher, progress, .. }, RunningStage { stage, .. }) =
            (&mut *self, &mut *running);
        watcher.recovered(progress)?;
        let started = Instant::now();
        let fed = stepper.feed(stage, progress)?;
        let look = watcher.begin_step(stepper.trainer(), &fed, started, progress);
        let number = progress.step + 1;
        let compared = watcher.compared(stepper.trainer(), number);
        let result = stepper.step(stage, &fed, look.since(), |device, params| {
            if let Some(compared) = &compared {
                Watcher::compare(device, params, compared, number)?;
            }
            keeper.release(device)
        })?;
        let seen = CompletedStep { trainer: stepper.trainer(), stage: stage.index(), how: stage.how() };
        let took = watcher.end_step(&look, seen, progress, hooks)?;
        let reported = stage.end_step(stepper.lap_s(), progress);
        let metrics = watcher.reported(reported, number, took.step_s)?;
        progress.add_step(took.step_s, stage.cursor().clone());
        let made =
            StepFigures { stage: stage.index(), lr: fed.lr, data_wait_s: fed.data_wait_s, metrics, took };
        let before = watcher.note(result, made, stepper.device(), progress);
        self.report(running, before, hooks)
    }

    /// Reads the last step's results from the device.
    fn read(&mut self, running: &RunningStage, hooks: &mut dyn Hooks) -> Result<()> {
        let last = self.watcher.last();
        self.report(running, last, hooks)
    }

    /// Logs a step; ends the run if its loss or gradient is not finite.
    fn report(&mut self, running: &RunningStage, step: Option<Pending>, hooks: &mut dyn Hooks) -> Result<()> {
        let Some(step) = step else { return Ok(()) };
        let (event, is_finite) = self.watcher.read(step, running.stage.how(), self.stepper.trainer())?;
        if !is_finite {
            return Err(Error::NotFinite {
                step: event.step,
                loss: event.loss,
                norm: event.grad_norm,
                saved: self.keeper.latest(),
                clipped: self.recipe.optimizer.clip.is_some(),
            });
        }
        let stage_step = self.progress.stage_step - (self.progress.step - event.step);
        hooks.step(&event, stage_step, running.stage.steps())
    }

    /// Number of checkpoints asked for from outside so far.
    fn asked_saves(&self) -> u64 {
        self.save_requests.0.map_or(0, |requests| requests.load(Ordering::Relaxed))
    }

    /// Exchanges the messages after a step. All ranks call this together.
    fn pulse(&mut self) -> Result<Pulse> {
        let due = self.keeper.save_is_due(self.progress.step) || self.asked_saves() != self.save_requests.1;
        let reported = [self.stop.load(Ordering::Relaxed), due, self.keeper.has_written()];
        let (busy_s, tokens) = (self.watcher.busy_s(), self.watcher.tokens());
        let pulse = Pulse::gather(self.stepper.device(), reported, busy_s, tokens)?;
        // Every rank that takes part here has made the earlier copies.
        self.keeper.confirm();
        Ok(pulse)
    }

    /// Copies this rank's state, after comparing replicated weights.
    fn copy(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        self.watcher.compare_all(self.stepper.trainer(), self.progress.step)?;
        if self.keeper.copy(self.stepper.trainer(), &self.progress)? {
            // The log must contain everything that the copy counts as done before the copy is on disk.
            self.watcher.sync()?;
            self.keeper.write_copy(hooks);
        }
        Ok(())
    }

    /// Starts a save; an earlier one ends first. All ranks call this together.
    fn save(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        self.save_requests.1 = self.asked_saves();
        self.end_save(hooks)?;
        let started = Instant::now();
        // The log must contain everything that the checkpoint counts as done before the checkpoint exists.
        self.watcher.sync()?;
        if self.keeper.advance(self.stepper.device(), &self.progress, hooks)? {
            return Ok(());
        }
        self.watcher.compare_all(self.stepper.trainer(), self.progress.step)?;
        self.keeper.save(self.stepper.trainer(), &self.progress, started, hooks)
    }

    /// Waits for the save in progress, if any. All ranks call this together.
    fn end_save(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        let saved = self.keeper.end_save(self.stepper.device(), hooks)?;
        self.watcher.saved(saved)
    }

    /// Ends a stage after its steps; returns the outcome if the run stops there. The end of the stage is saved, so that
    /// the run can return to it.
    fn leave(&mut self, running: RunningStage, hooks: &mut dyn Hooks) -> Result<Option<Outcome>> {
        let index = running.stage.index();
        drop(running);
        self.save(hooks)?;
        // The checkpoint is published before any measurement, which may take longer than the grace period of a request
        // to stop.
        self.end_save(hooks)?;
        let (trainer, log) = (self.stepper.trainer(), self.watcher.log());
        if hooks.stage_done(trainer, index, self.progress.step, log)? == Flow::Stop {
            return Ok(Some(Outcome::Interrupted));
        }
        self.progress = self.progress.after_stage(self.recipe.run.minutes);
        self.save(hooks)?;
        Ok(None)
    }
}

/// A rank's private folder, for everything but the checkpoints, which ranks share.
pub(crate) fn own_folder(folder: &Path, rank: usize) -> PathBuf {
    if rank == 0 { folder.to_path_buf() } else { rank_folder(folder, rank) }
}

/// Folder of a rank other than the first, inside the run's.
pub fn rank_folder(folder: &Path, rank: usize) -> PathBuf {
    folder.join("ranks").join(rank.to_string())
}
