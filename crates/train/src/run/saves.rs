//! When a run saves, and what the log says of it.

use std::time::Instant;

use fathom_base::metrics::{Event, events};

use super::{Hooks, Run, corrupt};
use crate::agree::{gather, until};
use crate::checkpoint::Saving;
use crate::error::{Error, Result};

impl Run<'_> {
    /// Whether the newest checkpoint is of the step that the run is at; the first rank looks.
    fn advance(&self, hooks: &mut dyn Hooks) -> Result<bool> {
        let device = &self.trainer.device;
        let advanced = match device.mesh.rank() {
            0 => self.checkpoints.advance(&self.progress).unwrap_or_else(|error| {
                hooks.warn(&format!("the last checkpoint cannot be brought up to date: {error}"));
                false
            }),
            _ => false,
        };
        Ok(gather(device, [i32::from(advanced)])?[0] == [1])
    }

    pub(super) fn save_is_due(&self) -> bool {
        let table = &self.recipe.checkpoint;
        table.every_s.is_some_and(|every| self.last_save.elapsed().as_secs_f64() >= every)
            || table.every_steps.is_some_and(|every| self.progress.step.is_multiple_of(every.max(1)))
    }

    /// Begins a save; an earlier one ends first. All ranks call this together.
    pub(super) fn save(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        self.end_save(hooks)?;
        let begun = Instant::now();
        // What the checkpoint counts as done must be in the log before the checkpoint is there.
        self.metrics.sync()?;
        if self.advance(hooks)? {
            self.unsaved = None;
        } else {
            if self.checks(self.progress.step, true) {
                let (trainer, step) = (&self.trainer, self.progress.step);
                corrupt::check(&trainer.device, &trainer.params, &corrupt::compared(trainer), step)?;
            }
            let saving = self.checkpoints.begin(&self.trainer, &self.progress);
            self.saving = self.tolerate(self.progress.step, saving, hooks)?;
            self.saving.iter_mut().for_each(|saving| saving.add_stall(begun.elapsed().as_secs_f64()));
        }
        self.last_save = Instant::now();
        Ok(())
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

    /// Lets the first rank publish once all have written: `written` says that of every rank. Says what was saved when that is
    /// done.
    pub(super) fn look_after_save(&mut self, written: bool, hooks: &mut dyn Hooks) -> Result<()> {
        if written {
            self.settle_save(hooks)?;
        }
        if self.saving.as_ref().is_some_and(Saving::is_over) { self.conclude_save(hooks) } else { Ok(()) }
    }

    /// Waits for the save that is being written, if there is one. All ranks call this together, also those where it is over.
    pub(super) fn end_save(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        self.settle_save(hooks)?;
        until(&self.trainer.device, &|| self.saving.as_ref().is_none_or(Saving::is_over))?;
        self.conclude_save(hooks)
    }

    /// Waits until all ranks have written; they agree about that once.
    fn settle_save(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        let Some(saving) = &mut self.saving else { return Ok(()) };
        let (step, settled) = (saving.step(), saving.settle(&self.trainer.device));
        if self.tolerate(step, settled, hooks)?.is_none() {
            self.saving = None;
        }
        Ok(())
    }

    /// Says what was saved. Each rank does this when its part is over.
    fn conclude_save(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        let Some(mut saving) = self.saving.take() else { return Ok(()) };
        let (step, saved) = (saving.step(), saving.finish(&self.trainer.device));
        let Some(saved) = self.tolerate(step, saved, hooks)? else { return Ok(()) };
        self.unsaved = None;
        if let Some(Err(error)) =
            self.local.as_ref().map(|local| local.publish(&self.trainer.device, Some(step)))
        {
            hooks.warn(&format!(
                "copies on this machine's disk do not know of the checkpoint of step {step}: {error}"
            ));
        }
        let stall_s = saving.stall_s();
        let event = events::Checkpoint { step, seconds: saved.seconds, stall_s, bytes: saved.bytes };
        Ok(self.metrics.write(&Event::Checkpoint(event))?)
    }
}
