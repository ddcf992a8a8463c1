//! When a run saves, and what there is to say of it.

use std::time::Instant;

use fathom_base::metrics::events;
use fathom_tensor::Device;

use super::Keeper;
use crate::agree::{gather, until};
use crate::checkpoint::Saving;
use crate::error::{Error, Result};
use crate::run::{Hooks, Progress};
use crate::step::Trainer;

impl Keeper<'_> {
    /// Whether a checkpoint of a step is wanted.
    pub fn save_is_due(&self, step: u64) -> bool {
        let table = &self.recipe.checkpoint;
        table.every_s.is_some_and(|every| self.last_save.elapsed().as_secs_f64() >= every)
            || table.every_steps.is_some_and(|every| step.is_multiple_of(every.max(1)))
    }

    /// Whether this rank has written its part of the save under way, or failed to.
    pub fn has_written(&self) -> bool {
        self.saving.as_ref().is_some_and(Saving::is_written)
    }

    /// Brings the newest checkpoint up to date, and says whether that was enough: it is of the step that the run is at. The first
    /// rank looks; all ranks call this together.
    pub fn advance(&mut self, device: &Device, progress: &Progress, hooks: &mut dyn Hooks) -> Result<bool> {
        let advanced = match device.mesh.rank() {
            0 => self.checkpoints.advance(progress).unwrap_or_else(|error| {
                hooks.warn(&format!("the last checkpoint cannot be brought up to date: {error}"));
                false
            }),
            _ => false,
        };
        let advanced = gather(device, [i32::from(advanced)])?[0] == [1];
        if advanced {
            self.unsaved = None;
            self.last_save = Instant::now();
        }
        Ok(advanced)
    }

    /// Begins a save, for which steps stand still since `started`; an earlier one has ended. All ranks call this together.
    pub fn save(
        &mut self,
        trainer: &Trainer,
        progress: &Progress,
        started: Instant,
        hooks: &mut dyn Hooks,
    ) -> Result<()> {
        let saving = self.checkpoints.begin(trainer, progress);
        self.saving = self.tolerate(progress.step, saving, hooks)?;
        self.saving.iter_mut().for_each(|saving| saving.add_stall(started.elapsed().as_secs_f64()));
        self.last_save = Instant::now();
        Ok(())
    }

    /// Waits until the save under way has read what an update is about to change. All ranks call this together.
    pub fn release(&mut self, device: &Device) -> Result<()> {
        self.saving.iter_mut().try_for_each(|saving| saving.release_together(device))
    }

    /// A save of a step that fails is a warning: the checkpoint before it stays, and the run goes on. A link that fails is not.
    fn tolerate<T>(&mut self, step: u64, saved: Result<T>, hooks: &mut dyn Hooks) -> Result<Option<T>> {
        match saved {
            Ok(saved) => Ok(Some(saved)),
            Err(Error::Link(error)) => Err(Error::Link(error)),
            Err(error) => {
                let left = match self.checkpoints.latest() {
                    Some(before) => format!("that of step {before} stays"),
                    None => "and there is none before it".into(),
                };
                hooks.warn(&format!("no checkpoint of step {step}, {left}: {error}"));
                self.unsaved = Some(error.to_string());
                Ok(None)
            }
        }
    }

    /// Lets the first rank publish once all have written (`written` says that of every rank), and gives what was saved when that
    /// is done.
    pub fn look_after_save(
        &mut self,
        device: &Device,
        written: bool,
        hooks: &mut dyn Hooks,
    ) -> Result<Option<events::Checkpoint>> {
        if written {
            self.settle_save(device, hooks)?;
        }
        match &self.saving {
            Some(saving) if saving.is_over() => self.conclude_save(device, hooks),
            _ => Ok(None),
        }
    }

    /// Waits for the save that is being written, if there is one, and gives what was saved. All ranks call this together, also
    /// those where it is over.
    pub fn end_save(&mut self, device: &Device, hooks: &mut dyn Hooks) -> Result<Option<events::Checkpoint>> {
        self.settle_save(device, hooks)?;
        until(device, &|| self.saving.as_ref().is_none_or(Saving::is_over))?;
        self.conclude_save(device, hooks)
    }

    /// Waits until all ranks have written; they agree about that once.
    fn settle_save(&mut self, device: &Device, hooks: &mut dyn Hooks) -> Result<()> {
        let Some(saving) = &mut self.saving else { return Ok(()) };
        let (step, settled) = (saving.step(), saving.settle(device));
        if self.tolerate(step, settled, hooks)?.is_none() {
            self.saving = None;
        }
        Ok(())
    }

    /// What was saved. Each rank does this when its part is over.
    fn conclude_save(
        &mut self,
        device: &Device,
        hooks: &mut dyn Hooks,
    ) -> Result<Option<events::Checkpoint>> {
        let Some(mut saving) = self.saving.take() else { return Ok(None) };
        let (step, saved) = (saving.step(), saving.finish(device));
        let Some(saved) = self.tolerate(step, saved, hooks)? else { return Ok(None) };
        self.unsaved = None;
        if let Some(Err(error)) = self.local.as_ref().map(|local| local.publish(device, Some(step))) {
            hooks.warn(&format!(
                "copies on this machine's disk do not know of the checkpoint of step {step}: {error}"
            ));
        }
        let stall_s = saving.stall_s();
        Ok(Some(events::Checkpoint { step, seconds: saved.seconds, stall_s, bytes: saved.bytes }))
    }
}
