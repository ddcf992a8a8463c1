//! Budgets of a stage. Ranks whose blocks communicate must plan with the same bytes to choose the same places.

use fathom_tensor::mesh::Axis;

use super::Stepper;
use crate::agree::gather_bytes;
use crate::error::Result;
use crate::plan::{Budgets, Draft, StageSettings};

impl Stepper<'_> {
    /// The stage's settings, if it fits. All ranks call this together.
    pub(super) fn settle(&self, index: usize) -> Result<StageSettings> {
        let device = &self.trainer.device;
        let (profile, rank, spec) = (device.machine.profile(), device.mesh.rank(), self.spec_after(index)?);
        let (recipe, budgets) = (self.recipe.clone(), self.budgets()?);
        Draft { profile, spec: &spec, recipe, index, budgets, rank }.check()
    }

    /// The minimum of all ranks' budgets.
    fn budgets(&self) -> Result<Budgets> {
        let device = &self.trainer.device;
        let mesh = &device.mesh;
        // Free space excludes weights and optimizer state that are on disk already. Within a pipeline stage, the rank
        // that is planned for all has most of them.
        let state = self.trainer.params.disk().filter(|disk| !disk.what().in_host);
        let state = gather_bytes(device, state.map_or(0, |disk| disk.stats().peak_reserved_bytes))?;
        let stage = |rank: usize| mesh.grid().index(rank, Axis::Pp);
        let held = (0..state.len()).filter(|rank| stage(*rank) == stage(mesh.rank()));
        let held = held.map(|rank| state[rank]).max().unwrap_or(0);
        // All ranks have been here, so the files of the previous stage are gone everywhere.
        let (profile, memory) = (device.machine.profile(), device.pool.budget());
        let own = Budgets::new(memory, profile, self.recipe, &self.folder, self.disk_sharers);
        let least =
            |bytes| -> Result<u64> { Ok(gather_bytes(device, bytes)?.into_iter().min().unwrap_or(bytes)) };
        let [memory, host, free] = [least(own.memory)?, least(own.host)?, least(own.disk)?];
        let held = if self.recipe.machine.disk_bytes.is_none() { held } else { 0 };
        Ok(Budgets { memory, host, disk: free.saturating_add(held) })
    }
}
