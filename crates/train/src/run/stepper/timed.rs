//! The number of steps of a stage with a time limit: decided from its first steps, and again after each.

use std::path::{Path, PathBuf};

use fathom_tensor::{Category, Device};

use crate::checkpoint::{publish, read_if_there};
use crate::error::{Error, Result};
use crate::run::{Progress, StageTime};

use super::pace::{Pace, TimedStep};

/// Steps measured before the number of a timed stage's steps is decided; fewer if they already took [`PROBE_SHARE`] of
/// its time.
const PROBE_STEPS: usize = 4;
/// See [`PROBE_STEPS`].
const PROBE_SHARE: f64 = 0.3;
/// Relative deviation from the stage's time up to which a decided number stays, because learning rates depend on it.
const TOLERANCE: f64 = 0.01;

/// Knowledge about the number of a stage's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// Nothing.
    Unknown,
    /// The number if steps continue at their current speed.
    Likely(u64),
    /// The final number.
    Decided(u64),
}

/// Time limits of stages, and the numbers of steps decided from them.
pub(super) struct TimeLimits<'a> {
    /// File of the decided numbers, so that a resumed run continues its schedule.
    path: PathBuf,
    time: Option<&'a dyn StageTime>,
    /// Clock when the last step ended, or the stage was entered.
    lapped_s: f64,
    /// Seconds of the stage's steps before this process entered it.
    spent_s: f64,
}

impl<'a> TimeLimits<'a> {
    /// Uses the time limits of `time`; `folder` has the decided numbers.
    pub fn new(folder: &Path, time: Option<&'a dyn StageTime>) -> TimeLimits<'a> {
        TimeLimits { path: folder.join("steps.json"), time, lapped_s: 0.0, spent_s: 0.0 }
    }

    /// Begins or continues a stage: returns the number of steps decided before, or 0 if there is no time for one.
    pub fn enter(&mut self, index: usize, progress: &Progress) -> Result<Length> {
        self.spent_s = progress.stage_time_s;
        self.lap_s();
        if let Some(steps) = self.decided(index)? {
            return Ok(Length::Decided(steps));
        }
        let (Some(time), true) = (self.time, progress.stage_step == 0) else { return Ok(Length::Unknown) };
        let left_s = time.left_s(index, self.spent_s);
        if time.step_s(index).is_none_or(|step_s| step_s <= left_s) {
            return Ok(Length::Unknown);
        }
        self.publish(index, 0)?;
        Ok(Length::Decided(0))
    }

    /// Seconds since the last call, or since the stage was entered; 0 without a clock.
    pub fn lap_s(&mut self) -> f64 {
        let now_s = self.time.map_or(0.0, StageTime::now_s);
        now_s - std::mem::replace(&mut self.lapped_s, now_s)
    }

    /// The number of steps of a timed stage, if it was decided before.
    fn decided(&self, index: usize) -> Result<Option<u64>> {
        let Some(text) = read_if_there(&self.path)? else { return Ok(None) };
        let decided: Vec<u64> = serde_json::from_str(&text)
            .map_err(|error| Error::Checkpoint { path: self.path.clone(), message: error.to_string() })?;
        Ok(decided.get(index).copied())
    }

    /// Decides the number from the steps so far, if they suffice, and the time left. `round` is the number of steps
    /// that share a rollout, `before` the previous knowledge.
    pub fn decide(
        &self,
        index: usize,
        (made, round): (&[TimedStep], u64),
        progress: &Progress,
        before: Length,
    ) -> Result<Length> {
        let Some(time) = self.time else { return Ok(Length::Decided(progress.stage_step)) };
        let left_s = time.left_s(index, self.spent_s).max(0.0);
        let pace = Pace::of(made, round);
        let steps = match &pace {
            Some(pace) => progress.stage_step + pace.steps_within(left_s, progress.stage_step),
            None if left_s > 0.0 => return Ok(before),
            None => progress.stage_step,
        };
        // A resumed stage has spent most of its time before, at an unknown speed.
        let probed_s: f64 = made.iter().map(|step| step.step_s).sum();
        let is_probed = made.len() >= PROBE_STEPS || probed_s >= PROBE_SHARE * (left_s + probed_s);
        match before {
            Length::Decided(_) if !is_probed => return Ok(before),
            _ if !is_probed => return Ok(Length::Likely(steps)),
            Length::Decided(known) => {
                let step_s = pace.map_or(0.0, |pace| pace.mean_s());
                let more_s = known.abs_diff(steps) as f64 * step_s;
                if more_s <= TOLERANCE * (left_s + progress.stage_time_s) {
                    return Ok(before);
                }
            }
            _ => {}
        }
        self.publish(index, steps)?;
        Ok(Length::Decided(steps))
    }

    /// Stores the number of a stage's steps after those of the earlier stages.
    fn publish(&self, index: usize, steps: u64) -> Result<()> {
        let mut decided = self.before(index)?;
        decided.push(steps);
        publish(&self.path, serde_json::json!(decided).to_string().as_bytes())
    }

    /// The decided numbers of the stages before `index`.
    fn before(&self, index: usize) -> Result<Vec<u64>> {
        (0..index).map(|before| Ok(self.decided(before)?.unwrap_or(0))).collect()
    }

    /// Forgets the numbers of the run's current stage and of later ones.
    pub fn reopen(&mut self, progress: &Progress) -> Result<()> {
        if read_if_there(&self.path)?.is_some() {
            let before = self.before(progress.stage)?;
            publish(&self.path, serde_json::json!(before).to_string().as_bytes())?;
        }
        Ok(())
    }
}

/// Broadcasts the first rank's knowledge. All ranks call this together.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A clock set by a test, with the end times of stages.
    struct StageClock {
        now_s: Cell<f64>,
        ends_s: Vec<f64>,
        step_s: Option<f64>,
    }

    impl StageTime for StageClock {
        fn now_s(&self) -> f64 {
            self.now_s.get()
        }

        fn left_s(&self, stage: usize, spent_s: f64) -> f64 {
            self.ends_s[stage] - self.now_s.get() - spent_s
        }

        fn step_s(&self, _: usize) -> Option<f64> {
            self.step_s
        }
    }

    /// Runs the steps of a stage, whose durations are `step_s` of their index; returns their number and the final
    /// clock.
    fn steps_of(time: &StageClock, index: usize, step_s: impl Fn(u64) -> f64) -> (u64, f64) {
        let folder = tempfile::tempdir().unwrap();
        let mut timed = TimeLimits::new(folder.path(), Some(time));
        let (mut progress, mut made) = (Progress { stage: index, ..Progress::default() }, Vec::new());
        let mut length = timed.enter(index, &progress).unwrap();
        while !matches!(length, Length::Decided(steps) if progress.stage_step >= steps) {
            time.now_s.set(time.now_s.get() + step_s(progress.stage_step));
            let lap_s = timed.lap_s();
            made.push(TimedStep { step_s: lap_s, opens: true });
            (progress.stage_step, progress.stage_time_s) =
                (progress.stage_step + 1, progress.stage_time_s + lap_s);
            length = timed.decide(index, (&made, 1), &progress, length).unwrap();
        }
        (progress.stage_step, time.now_s.get())
    }

    #[test]
    fn a_stage_ends_in_its_time_whatever_becomes_of_the_speed() {
        type SecondsOfStep = fn(u64) -> f64;
        let speeds: [(&str, SecondsOfStep, u64); 5] = [
            ("constant", |_| 1.0, 90),
            ("a slow first step", |step| if step == 0 { 9.0 } else { 1.0 }, 82),
            ("ten times slower from the thirtieth step on", |step| if step < 30 { 1.0 } else { 10.0 }, 36),
            (
                "three times faster from the thirtieth step on",
                |step| if step < 30 { 1.0 } else { 1.0 / 3.0 },
                // 30 s at one second per step, 60.5 s at three.
                211,
            ),
            ("steps of a quarter of the time", |_| 22.0, 4),
        ];
        for (what, step_s, expected) in speeds {
            let time = StageClock { now_s: Cell::new(10.0), ends_s: vec![100.5], step_s: None };
            let (steps, ended_s) = steps_of(&time, 0, step_s);
            let unused = 100.5 - ended_s;
            assert!(steps.abs_diff(expected) <= 1, "{what}: {steps} steps, not {expected}");
            assert!((-1.0..=step_s(steps) + 1.0).contains(&unused), "{what}: ended at {ended_s}");
        }
    }

    #[test]
    fn a_stage_whose_first_step_would_end_too_late_makes_none() {
        for (step_s, expected) in [(Some(12.0), 0), (Some(9.0), 1), (None, 1)] {
            let time = StageClock { now_s: Cell::new(50.0), ends_s: vec![40.0, 60.0], step_s };
            assert_eq!(steps_of(&time, 1, |_| 12.0).0, expected, "{step_s:?}");
        }
    }
}
