//! When a run saves, and what the log says of it.

use std::time::Instant;

use fathom_base::metrics::{Event, events};
use fathom_tensor::Category;

use super::Run;
use crate::error::Result;

impl Run<'_> {
    /// Whether any rank wants to stop (a signal may have come to one process alone), and whether the first one wants to save:
    /// the same on all of them.
    pub(super) fn agree(&self, wants: [bool; 2]) -> [bool; 2] {
        let device = &self.trainer.device;
        if device.mesh.grid().ranks() == 1 {
            return wants;
        }
        device.pool.enter("agree", -1);
        let wants = [wants[0], wants[1] && device.mesh.rank() == 0];
        let flags = device.from_f32(1, 2, &wants.map(|want| f32::from(u8::from(want))), Category::Comm);
        device.mesh.everybody().all_reduce(device, &flags);
        let sums = device.to_f32(&flags);
        [0, 1].map(|at| sums.get(at).is_some_and(|sum| *sum > 0.0))
    }

    /// Whether the newest checkpoint is of the step that the run is at; the first rank looks.
    fn advance(&self) -> Result<bool> {
        let advanced = self.trainer.device.mesh.rank() == 0 && self.checkpoints.advance(&self.progress)?;
        Ok(self.agree([advanced, false])[0])
    }

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
        if !self.advance()? {
            self.saving = self.checkpoints.begin(&self.trainer, &self.progress)?;
            self.saving.iter_mut().for_each(|saving| saving.add_stall(begun.elapsed().as_secs_f64()));
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
