//! What every rank tells all others after each step, in one small message, and what follows from it: scores, copies in memory.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fathom_base::metrics::Event;
use fathom_tensor::mesh::Axis;

use super::{Hooks, Run, corrupt};
use crate::agree::{gather, until};
use crate::checkpoint::Saving;
use crate::error::Result;

/// What one rank tells: it was asked to stop; it wants a checkpoint; it has written its part of one; the bits of the seconds, in
/// f32, of its last step that it did not wait for others.
type Beat = [i32; 4];

fn beat([stop, due, written]: [bool; 3], busy_s: f64) -> Beat {
    [i32::from(stop), i32::from(due), i32::from(written), (busy_s as f32).to_bits() as i32]
}

/// What all of them tell, by rank.
pub(super) struct Pulse(Vec<Beat>);

impl Pulse {
    /// Some rank was asked to stop.
    pub fn stop(&self) -> bool {
        self.0.iter().any(|[stop, ..]| *stop != 0)
    }

    /// The first rank, whose clock counts, wants a checkpoint.
    pub fn save_is_due(&self) -> bool {
        self.0.first().is_some_and(|[_, due, ..]| *due != 0)
    }

    /// Every rank has written its part of the checkpoint that is on its way, or failed to.
    pub fn written(&self) -> bool {
        self.0.iter().all(|[_, _, written, _]| *written != 0)
    }

    /// Seconds of each rank's last step that it did not wait for others.
    pub fn busy_s(&self) -> Vec<f64> {
        self.0.iter().map(|[.., busy_s]| f64::from(f32::from_bits(*busy_s as u32))).collect()
    }
}

impl Run<'_> {
    /// All ranks call this together.
    pub(super) fn pulse(&mut self) -> Result<Pulse> {
        let written = self.saving.as_ref().is_some_and(Saving::is_written);
        let told = [self.stop.load(Ordering::Relaxed), self.save_is_due(), written];
        let pulse = Pulse(gather(&self.trainer.device, beat(told, self.busy_s))?);
        // Every rank that speaks here has made the copies of the steps before.
        self.memory.confirm();
        Ok(pulse)
    }

    /// Scores the ranks by their last steps; the first rank tells.
    pub(super) fn score(&mut self, pulse: &Pulse, hooks: &mut dyn Hooks) -> Result<()> {
        let mesh = &self.trainer.device.mesh;
        if mesh.grid().ranks() == 1 || mesh.rank() > 0 {
            return Ok(());
        }
        let Some((event, warnings)) = self.stragglers.add(self.progress.step, &pulse.busy_s()) else {
            return Ok(());
        };
        warnings.iter().for_each(|text| hooks.warn(text));
        Ok(self.metrics.write(&Event::Ranks(event))?)
    }

    /// Says which section of the run this is, and how long others may take in it.
    pub(super) fn section(&self, name: &'static str, deadline_s: Option<f64>) {
        let deadline = deadline_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if let Some(link) = self.trainer.device.mesh.link() {
            link.section(name, deadline);
        }
    }

    /// A copy of this rank's state in memory before the first step, if copies are wanted and there is none.
    pub(super) fn copy_if_first(&mut self) -> Result<()> {
        match self.recipe.checkpoint.memory_every_steps {
            Some(_) if self.memory.is_empty() => self.memory.copy(&self.trainer, &self.progress),
            _ => Ok(()),
        }
    }

    pub(super) fn copy_is_due(&self) -> bool {
        let every = self.recipe.checkpoint.memory_every_steps;
        every.is_some_and(|every| self.progress.step.is_multiple_of(every.max(1)))
    }

    /// A copy of this rank's state in memory; of weights that are what they should be, as far as ranks can tell.
    pub(super) fn copy(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        if self.checks(self.progress.step, true) {
            let (trainer, step) = (&self.trainer, self.progress.step);
            corrupt::check(&trainer.device, &trainer.params, &corrupt::compared(trainer), step)?;
        }
        self.memory.copy(&self.trainer, &self.progress)?;
        if let Some(local) = &self.local {
            // The copy before this one may still be on its way to a slow disk.
            until(&self.trainer.device, &|| local.is_idle())?;
            // What the copy counts as done must be in the log before the copy is on disk.
            self.metrics.sync()?;
        }
        if let (Some(local), Some(copy)) = (&mut self.local, self.memory.newest())
            && let Err(error) = local.write(copy)
        {
            hooks.warn(&format!("a copy on this machine's disk was not written: {error}"));
        }
        Ok(())
    }

    /// Whether ranks compare their weights in a step, or before a copy or a checkpoint.
    pub(super) fn checks(&self, step: u64, copy: bool) -> bool {
        let mesh = &self.trainer.device.mesh;
        let every = self.recipe.mesh.check_every_steps;
        let replicas = mesh.size(Axis::Cp) * mesh.size(Axis::Dp);
        every > 0 && replicas > 1 && (copy || step.is_multiple_of(every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_may_take_a_day() {
        for busy_s in [0.0, 0.05, 86_400.5] {
            let told = Pulse(vec![beat([false, true, false], busy_s)]);
            assert!((told.busy_s()[0] - busy_s).abs() <= 1e-7 * busy_s);
            assert!(told.save_is_due() && !told.stop() && !told.written());
        }
    }
}
