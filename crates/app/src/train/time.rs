//! The time of a run: what stages and measurements are given of `run.minutes`, and how much is still to come.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use fathom_train::recipe::{Recipe, Stage};

use super::moments;

/// Share of a timed run for each of the two measurements.
const MEASURE_SHARE: f64 = 0.09;
/// Share of a timed run left for export, report and what takes longer than thought.
const MARGIN_SHARE: f64 = 0.06;
/// Seconds of all stages at least, however long the text took.
const LEAST_S: f64 = 5.0;

/// What a model has of `run.minutes`: all of it, or of several adapters, which take turns, an equal share, whatever a step of each takes.
pub struct Given {
    /// Seconds of each stage: what is left after measurements, by the stages' shares.
    pub stages: Vec<f64>,
    /// Seconds of each measurement.
    pub measure_s: f64,
    /// When the last measurement has to be over, so that export and report end in time.
    pub measured_by: Option<Instant>,
}

impl Given {
    /// Of the recipe of the whole run. Without minutes every stage has its steps (`check_training`), and nothing is given.
    pub fn of(recipe: &Recipe, started: Instant) -> Option<Given> {
        let whole_s = recipe.run.minutes? * 60.0;
        let (stages, models) = (&recipe.stage, recipe.adapters.len().max(1) as f64);
        let left = whole_s * (1.0 - 2.0 * MEASURE_SHARE - MARGIN_SHARE) - started.elapsed().as_secs_f64();
        let all: f64 = stages.iter().map(|stage| stage.minutes_share).sum();
        let of_stage = |stage: &Stage| left.max(LEAST_S) * stage.minutes_share / all / models;
        let by = Duration::try_from_secs_f64(whole_s * (1.0 - MARGIN_SHARE / 2.0)).ok();
        Some(Given {
            stages: stages.iter().map(of_stage).collect(),
            measure_s: whole_s * MEASURE_SHARE / models,
            measured_by: by.and_then(|by| started.checked_add(by)),
        })
    }
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
    pub fn new(recipe: &Recipe, flops: &[f64], given: Option<&Given>, measures: bool) -> Ahead {
        let or_none = |figures: &[f64], index: usize| figures.get(index).copied().unwrap_or(0.0);
        let stages = recipe.stage.iter().enumerate();
        let part = |(index, stage): (usize, &Stage)| TimedStage {
            steps: stage.steps,
            seconds: given.map_or(0.0, |given| or_none(&given.stages, index)),
            flops: or_none(flops, index),
        };
        let stages: Vec<TimedStage> = stages.map(part).collect();
        let last = stages.len().saturating_sub(1);
        let before = moments::before(recipe).and_then(|done| done.checked_sub(1));
        let measured = before.into_iter().chain([last]).filter(|_| measures).collect();
        Ahead { stages, measured, measure_s: given.map_or(0.0, |given| given.measure_s) }
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

/// What each model of a run has before it, as far as it is known. They take turns, so each waits for all.
pub(super) struct Turns(RefCell<Vec<Option<f64>>>);

impl Turns {
    /// Of so many models.
    pub fn of(models: usize) -> Turns {
        Turns(RefCell::new(vec![None; models]))
    }

    /// Seconds of the others, while the one at `index` has `own_s` before it: as many of each that has not said yet.
    pub fn of_others(&self, index: usize, own_s: f64) -> f64 {
        let mut known = self.0.borrow_mut();
        known[index] = Some(own_s);
        let all: f64 = known.iter().map(|seconds| seconds.unwrap_or(own_s)).sum();
        // Of one alone not a rounding more than nothing.
        if known.len() == 1 { 0.0 } else { all - own_s }
    }
}

#[cfg(test)]
mod tests {
    use fathom_train::recipe::NamedAdapter;

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
        let given = Given { stages: vec![200.0, 150.0, 100.0], measure_s: 54.0, measured_by: None };
        let ahead = Ahead::new(&timed, &[1e9, 2e9, 8e9], Some(&given), true);
        assert_eq!([ahead.after(0, 0.5), ahead.after(2, 4.0)], [150.0 + 100.0 + 108.0, 54.0]);
        assert_eq!(Ahead::new(&timed, &[], Some(&given), false).after(0, 0.5), 250.0);
    }

    #[test]
    fn everything_has_its_part_of_the_minutes() {
        let (mut timed, started) = (recipe([None; 3], Some(10.0)), Instant::now());
        let given = Given::of(&timed, started).unwrap();
        let whole = |given: &Given| given.stages.iter().sum::<f64>() + 2.0 * given.measure_s;
        assert!((560.0..=565.0).contains(&whole(&given)), "{}", whole(&given));
        let last = given.measured_by.unwrap() - started;
        assert!((580.0..600.0).contains(&last.as_secs_f64()), "{last:?}");
        assert!(Given::of(&recipe([Some(1); 3], None), started).is_none());
        // Three adapters have the run's time together, and end together.
        timed.adapters = vec![NamedAdapter::default(); 3];
        let each = Given::of(&timed, started).unwrap();
        assert!((560.0..=565.0).contains(&(3.0 * whole(&each))), "{}", whole(&each));
        assert_eq!((each.measure_s * 3.0, each.measured_by), (given.measure_s, given.measured_by));
    }

    #[test]
    fn each_waits_for_all() {
        let turns = Turns::of(3);
        assert_eq!(turns.of_others(0, 8.0), 16.0);
        assert_eq!(turns.of_others(1, 2.0), 10.0);
        assert_eq!([turns.of_others(2, 1.0), turns.of_others(0, 0.0)], [10.0, 3.0]);
        assert_eq!(Turns::of(1).of_others(0, 0.3), 0.0);
    }
}
