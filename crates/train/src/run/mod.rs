//! The training loop: stages of steps, with metrics, saves and resumption.
//!
//! A [`Run`] has three owners and passes plain values between them. The `stepper` has the model, the optimizer and the
//! data, and computes the next step. The `keeper` saves and restores checkpoints and copies of ranks' states. The
//! `watcher` has the log, the resources used by steps, and the health of ranks. The run itself knows its `progress`, and
//! saves and copies it. `turns` is the loop over the stages of one run, or of several that take turns: begin, enter a
//! stage, steps, leave it. `pulse` is the message that ranks exchange after a step, and `recover` returns runs to an
//! earlier step when a rank fails.

mod keeper;
mod parts;
mod progress;
mod pulse;
mod recover;
mod stepper;
mod turns;
mod watcher;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use fathom_base::metrics::MetricsWriter;

use crate::error::Result;
use crate::recipe::Recipe;
use crate::step::Trainer;
use keeper::Keeper;
pub use parts::{Hooks, Outcome, Rebuild, RunParts, StageTime};
pub use progress::{Amax, Progress, StageEnd};
use pulse::Pulse;
use stepper::{Stepper, Supplies};
pub use turns::together;
use watcher::Watcher;

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
}

/// A rank's private folder, for everything but the checkpoints, which ranks share.
pub(crate) fn own_folder(folder: &Path, rank: usize) -> PathBuf {
    if rank == 0 { folder.to_path_buf() } else { rank_folder(folder, rank) }
}

/// Folder of a rank other than the first, inside the run's.
pub fn rank_folder(folder: &Path, rank: usize) -> PathBuf {
    folder.join("ranks").join(rank.to_string())
}
