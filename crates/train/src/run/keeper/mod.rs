//! The keeper: checkpoints in the run's folder, copies of this rank's state in memory and on its machine's own disk,
//! and restoring from them. It does not know how steps are computed, and logs nothing: its methods return what was
//! saved. `saves` writes checkpoints; `memory` and `local` are the copies.

mod local;
mod memory;
mod saves;

use std::path::Path;
use std::time::Instant;

use fathom_tensor::Device;

use super::{Hooks, Progress};
use crate::agree::{gather, until};
use crate::checkpoint::Checkpoints;
use crate::checkpoint::{Base, PendingSave};
use crate::error::{Error, Result};
use crate::recipe::Recipe;
use crate::step::Trainer;
use local::Local;
use memory::Memory;

/// Saves and restores a run's state; see the module.
pub(super) struct Keeper<'a> {
    recipe: &'a Recipe,
    checkpoints: Checkpoints,
    last_save: Instant,
    /// The save in progress.
    saving: Option<PendingSave>,
    /// Reason why the last save failed.
    unsaved: Option<String>,
    /// Remarks on the checkpoint that the run continues from, as first warnings.
    notes: Vec<String>,
    /// Copies of ranks' states.
    memory: Memory,
    /// Copies of this rank's state on its machine's own disk.
    local: Option<Local>,
}

impl<'a> Keeper<'a> {
    /// Restores a trainer to the newest state of the run and returns its progress. All ranks call this together.
    ///
    /// # Errors
    /// A damaged checkpoint or copy, by name.
    pub fn open(
        recipe: &'a Recipe,
        folder: &Path,
        base: Option<Base>,
        trainer: &mut Trainer,
    ) -> Result<(Keeper<'a>, Option<Progress>)> {
        let path = folder.join("checkpoints");
        let checkpoints = Checkpoints::new(&path, recipe.checkpoint.keep).over(base);
        let device = trainer.device.clone();
        let local = recipe.checkpoint.local.as_deref();
        let local = local.map(|local| Local::open(&device, local, folder)).transpose()?;
        let saved = checkpoints.load_latest(trainer)?;
        let notes = checkpoints.note().into_iter().collect();
        let copy = match &local {
            Some(local) => local.newest(&device, saved.as_ref().map(|saved| saved.step))?,
            None => None,
        };
        let progress = match (copy, saved) {
            (Some(copy), _) => Some(copy.restore(trainer)?),
            (None, saved) => saved,
        };
        if let Some(Err(message)) = progress.as_ref().map(|progress| progress.check_stage(recipe.stage.len()))
        {
            return Err(Error::Checkpoint { path, message });
        }
        let (last_save, memory) = (Instant::now(), Memory::default());
        let keeper =
            Keeper { recipe, checkpoints, last_save, saving: None, unsaved: None, notes, memory, local };
        Ok((keeper, progress))
    }

    /// Takes the warnings to print before the first step.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The reason why the last save failed, if it did.
    pub fn unsaved(&self) -> Option<&str> {
        self.unsaved.as_deref()
    }

    /// The step of the newest checkpoint.
    pub fn latest(&self) -> Option<u64> {
        self.checkpoints.latest()
    }

    /// Copies this rank's state in memory before the first step, if copies are wanted and there is none. All ranks call
    /// this together.
    pub fn copy_if_first(&mut self, trainer: &Trainer, progress: &Progress) -> Result<()> {
        match self.recipe.checkpoint.memory_every_steps {
            Some(_) if self.memory.is_empty() => self.memory.copy(trainer, progress),
            _ => Ok(()),
        }
    }

    /// Whether to copy the state after a step.
    pub fn copy_is_due(&self, step: u64) -> bool {
        let every = self.recipe.checkpoint.memory_every_steps;
        every.is_some_and(|every| step.is_multiple_of(every.max(1)))
    }

    /// Copies this rank's state in memory; returns whether the copy goes to a disk too ([`Keeper::write_copy`]), which
    /// is idle then. All ranks call this together.
    pub fn copy(&mut self, trainer: &Trainer, progress: &Progress) -> Result<bool> {
        self.memory.copy(trainer, progress)?;
        if let Some(local) = &self.local {
            // The previous copy may still be in progress on a slow disk.
            until(&trainer.device, &|| local.is_idle())?;
        }
        Ok(self.local.is_some())
    }

    /// Starts to write the newest copy to this machine's disk.
    pub fn write_copy(&mut self, hooks: &mut dyn Hooks) {
        if let (Some(local), Some(copy)) = (&mut self.local, self.memory.newest())
            && let Err(error) = local.write(copy)
        {
            hooks.warn(&format!("a copy on this machine's disk was not written: {error}"));
        }
    }

    /// Drops older copies, since all ranks have the newest.
    pub fn confirm(&mut self) {
        self.memory.confirm();
    }

    /// Drops this rank's copies: it failed, and none of its data may be used.
    pub fn lose(&mut self) {
        self.memory.lose();
    }

    /// Abandons the save in progress; its readers are gone afterwards.
    pub fn give_up_save(&mut self) {
        self.saving = None;
    }

    /// Restores a trainer to the last state that all ranks have, and returns its progress; `None` if there is none. All
    /// ranks call this together.
    pub fn go_back(&mut self, trainer: &mut Trainer) -> Result<Option<Progress>> {
        let device = trainer.device.clone();
        let steps = gather(&device, self.memory.steps())?;
        let on_disk = gather(&device, [self.latest().map_or(-1, |step| step as i32)])?[0][0];
        match memory::common(&steps) {
            Some((step, have)) if step as i64 >= i64::from(on_disk) => {
                self.memory.give_back(&device, step, &have)?;
                self.memory.keep_up_to(step);
                self.memory.own(step).map(|copy| copy.restore(trainer)).transpose()
            }
            _ => {
                self.memory.lose();
                self.checkpoints.load_latest(trainer)
            }
        }
    }

    /// Resets the timers and errors of saves after [`Keeper::go_back`].
    pub fn go_on(&mut self) {
        self.unsaved = None;
        self.last_save = Instant::now();
    }

    /// Sends this rank's newest copy to its partner, which may have none. All ranks call this together.
    pub fn trade(&mut self, device: &Device) -> Result<()> {
        self.memory.trade(device)
    }
}
