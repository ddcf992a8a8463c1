//! How many steps a stage makes that has seconds instead: decided by its first steps, once.

use std::path::{Path, PathBuf};

use fathom_tensor::{Category, Device};

use crate::checkpoint::{publish, read_if_there};
use crate::error::{Error, Result};
use crate::run::Progress;

use super::pace::{Made, Pace};

/// Steps measured before the number of a timed stage's steps is decided; fewer if they already took
/// [`PROBE_SHARE`] of its time.
const PROBE_STEPS: usize = 4;
/// See [`PROBE_STEPS`].
const PROBE_SHARE: f64 = 0.3;
/// A timed stage gets this share of its seconds at least, however late the run is.
const LEAST_SHARE: f64 = 0.5;

/// What is known of the number of a stage's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// Nothing.
    Unknown,
    /// So many if steps go on as those so far.
    Likely(u64),
    /// So many.
    Decided(u64),
}

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

    /// Decides it from the steps so far, if they are enough; `round`: as many share a rollout.
    pub fn decide(&self, index: usize, made: &[Made], round: u64, progress: &Progress) -> Result<Length> {
        let given = self.seconds.get(index).copied().unwrap_or(60.0);
        let seconds = (given + self.unspent_s).max(LEAST_SHARE * given);
        let left = (seconds - progress.stage_time_s).max(0.0);
        let more = match Pace::of(made, round) {
            Some(pace) => pace.steps_within(left, progress.stage_step),
            None if left > 0.0 => return Ok(Length::Unknown),
            None => 0,
        };
        let steps = progress.stage_step + more;
        // A stage that goes on has spent the most of its time before, at what speed is not known.
        let probed: f64 = made.iter().map(|step| step.step_s).sum();
        if made.len() < PROBE_STEPS && probed < PROBE_SHARE * (left + probed) {
            return Ok(Length::Likely(steps));
        }
        let mut decided = self.before(index)?;
        decided.push(steps);
        publish(&self.path, serde_json::json!(decided).to_string().as_bytes())?;
        Ok(Length::Decided(steps))
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

/// What the first rank knows, on all. All ranks call this together.
pub(super) fn agree(device: &Device, known: Length) -> Length {
    if device.mesh.grid().ranks() == 1 {
        return known;
    }
    let number = |steps: u64| i32::try_from(steps).unwrap_or(i32::MAX);
    let sent = match known {
        Length::Unknown => [0, 0],
        Length::Likely(steps) => [1, number(steps)],
        Length::Decided(steps) => [2, number(steps)],
    };
    let sent = device.from_i32(&sent, Category::Comm);
    device.mesh.everybody().broadcast(device, 0, &sent);
    let bytes = device.machine.read(&sent).wait();
    let [kind, steps] =
        [0, 4].map(|at| bytes[at..].first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes)));
    let steps = u64::try_from(steps).unwrap_or(0);
    match kind {
        1 => Length::Likely(steps),
        2 => Length::Decided(steps),
        _ => Length::Unknown,
    }
}
