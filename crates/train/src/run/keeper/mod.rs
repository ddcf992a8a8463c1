//! Who keeps: checkpoints in the run's folder, copies of this rank's state in memory and on its machine's own disk, and what of
//! them is restored. It knows nothing of how steps are made, and logs nothing: what was saved, its methods return. `saves` writes
//! checkpoints, `memory` and `local` are the copies.

mod local;
mod memory;
mod saves;

use std::path::Path;
use std::time::Instant;

use fathom_tensor::Device;

use super::{Hooks, Progress};
use crate::agree::{gather, until};
use crate::checkpoint::{Base, Checkpoints, Saving};
use crate::error::{Error, Result};
use crate::recipe::Recipe;
use crate::step::Trainer;
use local::Local;
use memory::Memory;

/// See the module.
pub(super) struct Keeper<'a> {
    recipe: &'a Recipe,
    checkpoints: Checkpoints,
    last_save: Instant,
    /// The save that is being written.
    saving: Option<Saving>,
    /// Why the last save failed.
    unsaved: Option<String>,
    /// What the first warnings are: of the checkpoint that the run goes on from.
    notes: Vec<String>,
    /// Copies of ranks' states.
    memory: Memory,
    /// Copies of this rank's on its machine's own disk.
    local: Option<Local>,
}

impl<'a> Keeper<'a> {
    /// Gives a trainer the newest state that there is of the run, and says of when that is. All ranks call this together.
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

    /// What there is to warn of before the first step; said once.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Why the last save failed, if it did.
    pub fn unsaved(&self) -> Option<&str> {
        self.unsaved.as_deref()
    }

    /// The step of the newest checkpoint.
    pub fn latest(&self) -> Option<u64> {
        self.checkpoints.latest()
    }

    /// Copies this rank's state in memory before the first step, if copies are wanted and there is none. All ranks call this together.
    pub fn copy_if_first(&mut self, trainer: &Trainer, progress: &Progress) -> Result<()> {
        match self.recipe.checkpoint.memory_every_steps {
            Some(_) if self.memory.is_empty() => self.memory.copy(trainer, progress),
            _ => Ok(()),
        }
    }

    /// Whether the state after a step is to be copied.
    pub fn copy_is_due(&self, step: u64) -> bool {
        let every = self.recipe.checkpoint.memory_every_steps;
        every.is_some_and(|every| step.is_multiple_of(every.max(1)))
    }

    /// Copies this rank's state in memory, and says whether the copy goes to a disk too ([`Keeper::write_copy`]), which then has
    /// time for it. All ranks call this together.
    pub fn copy(&mut self, trainer: &Trainer, progress: &Progress) -> Result<bool> {
        self.memory.copy(trainer, progress)?;
        if let Some(local) = &self.local {
            // The copy before this one may still be on its way to a slow disk.
            until(&trainer.device, &|| local.is_idle())?;
        }
        Ok(self.local.is_some())
    }

    /// Begins to write the newest copy to this machine's disk.
    pub fn write_copy(&mut self, hooks: &mut dyn Hooks) {
        if let (Some(local), Some(copy)) = (&mut self.local, self.memory.newest())
            && let Err(error) = local.write(copy)
        {
            hooks.warn(&format!("a copy on this machine's disk was not written: {error}"));
        }
    }

    /// Forgets copies that are not needed any more: all ranks have the newest.
    pub fn confirm(&mut self) {
        self.memory.confirm();
    }

    /// Forgets this rank's copies: it failed, and nothing that it has may be used.
    pub fn lose(&mut self) {
        self.memory.lose();
    }

    /// Gives up the save that is being written; its readers are gone after this.
    pub fn give_up_save(&mut self) {
        self.saving = None;
    }

    /// Gives a trainer the last state that all ranks have, and says of when that is; none if there is nothing to go back to. All
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

    /// Goes on from what [`Keeper::go_back`] restored.
    pub fn go_on(&mut self) {
        self.unsaved = None;
        self.last_save = Instant::now();
    }

    /// Sends this rank's newest copy to its partner, which may have none. All ranks call this together.
    pub fn trade(&mut self, device: &Device) -> Result<()> {
        self.memory.trade(device)
    }
}
