//! Schedule and results of saves.

use std::time::Instant;

use fathom_base::metrics::events;
use fathom_tensor::Device;

use super::Keeper;
use crate::agree::{gather, until};
use crate::checkpoint::PendingSave;
use crate::error::{Error, Result};
use crate::run::{Hooks, Progress};
use crate::step::Trainer;

impl Keeper<'_> {
    /// True if a checkpoint after a step is wanted.
    pub fn save_is_due(&self, step: u64) -> bool {
        let table = &self.recipe.checkpoint;
        table.every_s.is_some_and(|every| self.last_save.elapsed().as_secs_f64() >= every)
            || table.every_steps.is_some_and(|every| step.is_multiple_of(every.max(1)))
    }

    /// True if this rank has written its part of the save in progress, or failed to.
    pub fn has_written(&self) -> bool {
        self.saving.as_ref().is_some_and(PendingSave::is_written)
    }

    /// Updates the newest checkpoint; returns whether that was enough, because it is of the current step. The first
    /// rank decides; all ranks call this together.
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

    /// Starts a save, for which steps have waited since `started`; earlier ones have ended. All ranks call this
    /// together.
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

    /// Waits until the save in progress has read everything that an update changes. All ranks call this together.
    pub fn release(&mut self, device: &Device) -> Result<()> {
        self.saving.iter_mut().try_for_each(|saving| saving.release_together(device))
    }

    /// Turns the failure of a save into a warning: the previous checkpoint stays, and the run continues. Failures of a
    /// link are returned.
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

    /// Lets the first rank publish once all ranks have `written`; returns the saved checkpoint when that is done.
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

    /// Waits for the save in progress, if any, and returns it. All ranks call this together, including those whose part
    /// is over.
    pub fn end_save(&mut self, device: &Device, hooks: &mut dyn Hooks) -> Result<Option<events::Checkpoint>> {
        self.settle_save(device, hooks)?;
        until(device, &|| self.saving.as_ref().is_none_or(PendingSave::is_over))?;
        self.conclude_save(device, hooks)
    }

    /// Waits until all ranks have written, on which they agree once.
    fn settle_save(&mut self, device: &Device, hooks: &mut dyn Hooks) -> Result<()> {
        let Some(saving) = &mut self.saving else { return Ok(()) };
        let (step, settled) = (saving.step(), saving.settle(device));
        if self.tolerate(step, settled, hooks)?.is_none() {
            self.saving = None;
        }
        Ok(())
    }

    /// The saved checkpoint. Each rank calls this when its part is over.
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
