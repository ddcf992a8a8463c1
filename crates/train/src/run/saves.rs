//! When a run saves, and what the log says of it.

use std::time::Instant;

use fathom_base::metrics::{Event, events};

use super::Run;
use crate::error::Result;

impl Run<'_> {
    pub(super) fn save_is_due(&self) -> bool {
        let table = &self.recipe.checkpoint;
        table.every_s.is_some_and(|every| self.last_save.elapsed().as_secs_f64() >= every)
            || table.every_steps.is_some_and(|every| self.progress.step.is_multiple_of(every.max(1)))
    }

    /// Begins a save; an earlier one ends first.
    pub(super) fn save(&mut self) -> Result<()> {
        self.end_save()?;
        let begun = Instant::now();
        // What the checkpoint counts as done must be in the log before the checkpoint is there.
        self.metrics.sync()?;
        if !self.checkpoints.advance(&self.progress)? {
            let mut saving = self.checkpoints.begin(&self.trainer, &self.progress)?;
            saving.add_stall(begun.elapsed().as_secs_f64());
            self.saving = Some(saving);
        }
        self.last_save = Instant::now();
        Ok(())
    }

    /// Waits for the save that is being written, if there is one.
    pub(super) fn end_save(&mut self) -> Result<()> {
        let Some(mut saving) = self.saving.take() else { return Ok(()) };
        let saved = saving.finish()?;
        let (step, stall_s) = (saving.step(), saving.stall_s());
        let event = events::Checkpoint { step, seconds: saved.seconds, stall_s, bytes: saved.bytes };
        Ok(self.metrics.write(&Event::Checkpoint(event))?)
    }
}
