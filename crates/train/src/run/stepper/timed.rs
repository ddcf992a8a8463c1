//! How many steps a stage makes that has seconds instead: decided by its first steps, once.

use std::path::{Path, PathBuf};

use fathom_tensor::{Category, Device};

use crate::checkpoint::{publish, read_if_there};
use crate::error::{Error, Result};
use crate::run::Progress;

/// Steps measured before the number of a timed stage's steps is decided; fewer if they already took
/// [`PROBE_SHARE`] of its time.
const PROBE_STEPS: usize = 4;
/// See [`PROBE_STEPS`].
const PROBE_SHARE: f64 = 0.3;
/// A timed stage gets this share of its seconds at least, however late the run is.
const LEAST_SHARE: f64 = 0.5;

/// Seconds of stages, and the numbers of steps that were decided from them.
pub(super) struct Timed {
    /// Has the decided numbers, so that a resumed run has the same schedule.
    path: PathBuf,
    /// Seconds of each stage, for stages without steps.
    seconds: Vec<f64>,
    /// Seconds that earlier stages of this process left over (negative: overran): a stage's first steps decide the number of its
    /// steps, and the machine's speed changes.
    unspent_s: f64,
}

impl Timed {
    /// Of stages with so many seconds each; `folder` has the decided numbers.
    pub fn new(folder: &Path, seconds: Vec<f64>) -> Timed {
        Timed { path: folder.join("steps.json"), seconds, unspent_s: 0.0 }
    }

    /// The number of a timed stage's steps, if it was decided before.
    pub fn decided(&self, index: usize) -> Result<Option<u64>> {
        let Some(text) = read_if_there(&self.path)? else { return Ok(None) };
        let decided: Vec<u64> = serde_json::from_str(&text)
            .map_err(|error| Error::Checkpoint { path: self.path.clone(), message: error.to_string() })?;
        Ok(decided.get(index).copied())
    }

    /// Decides it from the seconds of the steps so far, if they are enough.
    pub fn decide(&self, index: usize, times: &[f64], progress: &Progress) -> Result<Option<u64>> {
        let given = self.seconds.get(index).copied().unwrap_or(60.0);
        let seconds = (given + self.unspent_s).max(LEAST_SHARE * given);
        let spent = progress.stage_time_s;
        // A stage that goes on has spent the most of its time before, at what speed is not known.
        let probed: f64 = times.iter().sum();
        if times.len() < PROBE_STEPS && probed < PROBE_SHARE * (seconds - (spent - probed)) {
            return Ok(None);
        }
        // The first step touches fresh memory and is slower than the rest.
        let mut times = times[usize::from(times.len() > 1)..].to_vec();
        times.sort_by(f64::total_cmp);
        let more = ((seconds - spent).max(0.0) / times[times.len() / 2]) as u64;
        let steps = progress.stage_step + more;
        let mut decided = self.before(index)?;
        decided.push(steps);
        publish(&self.path, serde_json::json!(decided).to_string().as_bytes())?;
        Ok(Some(steps))
    }

    /// The decided numbers of the stages before one.
    fn before(&self, index: usize) -> Result<Vec<u64>> {
        (0..index).map(|before| Ok(self.decided(before)?.unwrap_or(0))).collect()
    }

    /// Counts the seconds that a stage took.
    pub fn leave(&mut self, index: usize, stage_time_s: f64) {
        self.unspent_s += self.seconds.get(index).copied().unwrap_or(0.0) - stage_time_s;
    }

    /// Counts seconds that were not used (negative: overrun).
    pub fn set_aside(&mut self, seconds: f64) {
        self.unspent_s += seconds;
    }

    /// Forgets the number of the steps of the stage that the run is at, and of those after it: it has the seconds that all stages
    /// left over.
    pub fn reopen(&mut self, progress: &Progress) -> Result<()> {
        let index = progress.stage;
        if read_if_there(&self.path)?.is_some() {
            publish(&self.path, serde_json::json!(self.before(index)?).to_string().as_bytes())?;
        }
        let given: f64 = self.seconds.iter().take(index).sum();
        self.unspent_s = given - (progress.time_s - progress.stage_time_s);
        Ok(())
    }
}

/// What the first rank has decided, on all. All ranks call this together.
pub(super) fn agree(device: &Device, decided: Option<u64>) -> Option<u64> {
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
