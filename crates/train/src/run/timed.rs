//! How many steps a stage makes that has seconds instead: decided by its first steps, once.

use fathom_tensor::Category;

use super::{Run, Running};
use crate::checkpoint::read_if_there;
use crate::error::{Error, Result};

/// Steps measured before the number of a timed stage's steps is decided; fewer if they already took
/// [`PROBE_SHARE`] of its time.
const PROBE_STEPS: usize = 4;
/// See [`PROBE_STEPS`].
const PROBE_SHARE: f64 = 0.3;
/// A timed stage gets this share of its seconds at least, however late the run is.
const LEAST_SHARE: f64 = 0.5;

impl Run<'_> {
    /// The number of a timed stage's steps, if it was decided before. Kept in the folder so that a resumed run has the
    /// same schedule.
    pub(super) fn decided(&self, index: usize) -> Result<Option<u64>> {
        let path = self.folder.join("steps.json");
        let Some(text) = read_if_there(&path)? else { return Ok(None) };
        let decided: Vec<u64> = serde_json::from_str(&text)
            .map_err(|error| Error::Checkpoint { path, message: error.to_string() })?;
        Ok(decided.get(index).copied())
    }

    /// Decides it from the steps so far, if they are enough.
    pub(super) fn decide(&self, running: &Running) -> Result<Option<u64>> {
        let decided = match self.trainer.device.mesh.rank() {
            0 => self.decide_here(running)?,
            _ => None,
        };
        Ok(self.agree_steps(decided))
    }

    /// What the first rank has decided, on all.
    pub(super) fn agree_steps(&self, decided: Option<u64>) -> Option<u64> {
        let device = &self.trainer.device;
        if device.mesh.grid().ranks() == 1 {
            return decided;
        }
        let number = decided.and_then(|steps| i32::try_from(steps).ok()).unwrap_or(-1);
        let number = device.from_i32(&[number], Category::Comm);
        device.mesh.everybody().broadcast(device, 0, &number);
        let bytes = device.machine.read(&number).wait();
        let number = bytes.first_chunk::<4>().map_or(-1, |bytes| i32::from_le_bytes(*bytes));
        u64::try_from(number).ok()
    }

    fn decide_here(&self, running: &Running) -> Result<Option<u64>> {
        let given = self.seconds.get(running.index).copied().unwrap_or(60.0);
        let seconds = (given + self.unspent_s).max(LEAST_SHARE * given);
        let spent = self.progress.stage_time_s;
        // A stage that goes on has spent the most of its time before, at what speed is not known.
        let probed: f64 = running.times.iter().sum();
        if running.times.len() < PROBE_STEPS && probed < PROBE_SHARE * (seconds - (spent - probed)) {
            return Ok(None);
        }
        // The first step touches fresh memory and is slower than the rest.
        let mut times = running.times[usize::from(running.times.len() > 1)..].to_vec();
        times.sort_by(f64::total_cmp);
        let more = ((seconds - spent).max(0.0) / times[times.len() / 2]) as u64;
        let steps = self.progress.stage_step + more;
        let mut decided: Vec<u64> =
            (0..running.index).map(|index| Ok(self.decided(index)?.unwrap_or(0))).collect::<Result<_>>()?;
        decided.push(steps);
        let path = self.folder.join("steps.json");
        crate::checkpoint::publish(&path, serde_json::json!(decided).to_string().as_bytes())?;
        Ok(Some(steps))
    }
}
