//! The time of a run: what stages and measurements are given of `run.minutes`, and how much is still to come.

use std::time::{Duration, Instant};

use fathom_train::recipe::{Recipe, Stage};

use super::moments;

/// Share of a timed run for each of the two measurements.
const MEASURE_SHARE: f64 = 0.09;
/// Share of a timed run left for export, report and what takes longer than thought.
const MARGIN_SHARE: f64 = 0.06;

/// Seconds of the whole run.
fn whole_s(recipe: &Recipe) -> Option<f64> {
    recipe.run.minutes.map(|minutes| minutes * 60.0)
}

/// Seconds for each measurement.
pub(super) fn measure_s(recipe: &Recipe) -> Option<f64> {
    whole_s(recipe).map(|seconds| seconds * MEASURE_SHARE)
}

/// When the last measurement has to be over, so that export and report end in time.
pub(super) fn measured_by(recipe: &Recipe, started: Instant) -> Option<Instant> {
    let seconds = whole_s(recipe)? * (1.0 - MARGIN_SHARE / 2.0);
    started.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
}

/// Seconds of each stage: what is left of `run.minutes` after measurements, by the stages' shares. Without minutes every stage has
/// its steps (`check_training`), and none is given a time.
pub(super) fn stage_seconds(recipe: &Recipe, started: Instant) -> Option<Vec<f64>> {
    let (stages, whole_s) = (&recipe.stage, whole_s(recipe)?);
    let left = whole_s * (1.0 - 2.0 * MEASURE_SHARE - MARGIN_SHARE) - started.elapsed().as_secs_f64();
    let all: f64 = stages.iter().map(|stage| stage.minutes_share).sum();
    Some(stages.iter().map(|stage| left.max(5.0) * stage.minutes_share / all).collect())
}

/// A stage, for the time that it takes.
struct TimedStage {
    /// Its steps, where they are fixed.
    steps: Option<u64>,
    /// Its seconds, where they are not.
    seconds: f64,
    /// FLOPs of a step.
    flops: f64,
}

/// What a run has before it.
pub(super) struct Ahead {
    stages: Vec<TimedStage>,
    /// The stages after which is measured.
    measured: Vec<usize>,
    /// Seconds of a measurement: what it is given, or what the one before took.
    pub measure_s: f64,
}

impl Ahead {
    /// Of a run from its first stage on; `measures` says whether it measures between its stages.
    pub fn new(recipe: &Recipe, flops: &[f64], seconds: Option<&[f64]>, measures: bool) -> Ahead {
        let or_none = |figures: &[f64], index: usize| figures.get(index).copied().unwrap_or(0.0);
        let stages = recipe.stage.iter().enumerate();
        let part = |(index, stage): (usize, &Stage)| TimedStage {
            steps: stage.steps,
            seconds: or_none(seconds.unwrap_or_default(), index),
            flops: or_none(flops, index),
        };
        let stages: Vec<TimedStage> = stages.map(part).collect();
        let last = stages.len().saturating_sub(1);
        let before = moments::before(recipe).and_then(|done| done.checked_sub(1));
        let measured = before.into_iter().chain([last]).filter(|_| measures).collect();
        Ahead { stages, measured, measure_s: measure_s(recipe).unwrap_or(0.0) }
    }

    /// Expected seconds after the steps of a stage of which a step takes `step_s`: later stages take as long as their FLOPs say.
    pub fn after(&self, stage: usize, step_s: f64) -> f64 {
        let now = self.stages.get(stage).map_or(0.0, |part| part.flops);
        let rate = if now > 0.0 { step_s / now } else { 0.0 };
        let seconds =
            |part: &TimedStage| part.steps.map_or(part.seconds, |steps| steps as f64 * part.flops * rate);
        let later: f64 = self.stages.iter().skip(stage + 1).map(seconds).sum();
        let measurements = self.measured.iter().filter(|measured| **measured >= stage).count();
        later + measurements as f64 * self.measure_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(steps: [Option<u64>; 3], minutes: Option<f64>) -> Recipe {
        let stage = steps.map(|steps| Stage { steps, ..Stage::default() }).to_vec();
        let mut recipe = Recipe { stage, ..Recipe::default() };
        recipe.run.minutes = minutes;
        recipe
    }

    #[test]
    fn what_is_left_is_that_of_the_run() {
        let fixed = recipe([Some(10), Some(20), Some(5)], None);
        let mut ahead = Ahead::new(&fixed, &[1e9, 2e9, 8e9], None, true);
        ahead.measure_s = 7.0;
        // Twenty steps of twice the work, five of eight times; measured after the second stage and the third.
        assert_eq!(ahead.after(0, 0.5), 20.0 * 1.0 + 5.0 * 4.0 + 14.0);
        assert_eq!([ahead.after(1, 1.0), ahead.after(2, 4.0)], [5.0 * 4.0 + 14.0, 7.0]);
        let timed = recipe([None; 3], Some(10.0));
        let ahead = Ahead::new(&timed, &[1e9, 2e9, 8e9], Some(&[200.0, 150.0, 100.0]), true);
        assert_eq!([ahead.after(0, 0.5), ahead.after(2, 4.0)], [150.0 + 100.0 + 108.0, 54.0]);
        assert_eq!(Ahead::new(&timed, &[], Some(&[200.0, 150.0, 100.0]), false).after(0, 0.5), 250.0);
    }

    #[test]
    fn everything_has_its_part_of_the_minutes() {
        let (timed, started) = (recipe([None; 3], Some(10.0)), Instant::now());
        let stages: f64 = stage_seconds(&timed, started).unwrap().iter().sum();
        let measured = 2.0 * measure_s(&timed).unwrap();
        assert!((560.0..=565.0).contains(&(stages + measured)), "{stages} {measured}");
        let last = measured_by(&timed, started).unwrap() - started;
        assert!((580.0..600.0).contains(&last.as_secs_f64()), "{last:?}");
        assert_eq!(measured_by(&recipe([Some(1); 3], None), started), None);
    }
}
