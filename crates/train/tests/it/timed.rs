//! Lengths of stages, and the resulting learning rates.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use fathom_base::metrics::{Event, read_events};
use fathom_tensor::mesh::Grid;
use fathom_text::loader::Cursor;
use fathom_train::recipe::{Checkpoint, Recipe};
use fathom_train::{
    MicroBatch, OpenedSource, Outcome, RateSchedule, Result, Source, Sources, StageTime, StepShare, Stores,
    Trainer,
};

use crate::again::alone_from;
use crate::survive::{VOCAB, Watch, mesh, recipe, write_store};

/// One stage without a length, with warm-up as a share.
fn shared(folder: &Path) -> Recipe {
    write_store(&folder.join("store"));
    let mut recipe = recipe(folder, mesh(Grid::default(), 0), Checkpoint::default());
    recipe.schedule.warmup_steps = Some(0);
    recipe.schedule.warmup_share = Some(0.3);
    recipe.stage[0].steps = None;
    recipe
}

/// A clock moved by steps, and its value at the end of a stage.
#[derive(Clone)]
struct StageClock {
    now_s: Rc<Cell<f64>>,
    ends_s: f64,
}

impl StageClock {
    fn until(ends_s: f64) -> StageClock {
        StageClock { now_s: Rc::default(), ends_s }
    }
}

impl StageTime for StageClock {
    fn now_s(&self) -> f64 {
        self.now_s.get()
    }

    fn left_s(&self, _: usize, _: f64) -> f64 {
        self.ends_s - self.now_s.get()
    }
}

/// Runs a recipe to its end, stopped once after a step; each step takes a second.
fn stopped_at(folder: &Path, recipe: &Recipe, seconds: f64, step: u64) {
    let (mut outcome, time) = (Outcome::Interrupted, StageClock::until(seconds));
    for stop_at in [Some(step), None] {
        if outcome == Outcome::Interrupted {
            let (inner, stop) = (Stores::open(recipe, None, VOCAB).unwrap(), AtomicBool::new(false));
            let mut watch = Watch { warnings: Vec::new(), stop_at, stop: &stop };
            let sources = Slow { inner, time: time.clone(), round: 1, step_s: |_| 1.0 };
            let sources: Box<dyn Sources> = Box::new(sources);
            (outcome, _) = alone_from(folder, recipe, (sources, Some(&time)), &stop, &mut watch);
        }
    }
    assert_eq!(outcome, Outcome::Finished);
}

/// The learning rates of all steps.
fn rates(folder: &Path) -> Vec<f64> {
    let events = read_events(folder.join("metrics.jsonl")).unwrap();
    let rate = |event: &serde_json::Value| match Event::from_value(event) {
        Some(Event::Step(step)) => Some(step.lr),
        _ => None,
    };
    events.iter().filter_map(rate).collect()
}

/// Compares numbers up to the precision of text.
#[track_caller]
fn is_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-12 * expected, "{found} {expected}");
}

#[test]
fn a_share_of_warm_up_is_of_all_steps() {
    for (steps, epochs) in [(Some(9), None), (None, Some(1))] {
        let folder = tempfile::tempdir().unwrap();
        let mut recipe = shared(folder.path());
        (recipe.stage[0].steps, recipe.stage[0].epochs) = (steps, epochs);
        recipe.stage[0].micro_batches = 8;
        stopped_at(folder.path(), &recipe, 60.0, 2);
        let rates = rates(folder.path());
        let schedule = RateSchedule::new(&recipe, 0, rates.len() as u64);
        assert!(rates.len() > 4 && steps.is_none_or(|steps| rates.len() as u64 == steps), "{rates:?}");
        assert_eq!(schedule.warmup_steps, (0.3 * rates.len() as f64).ceil() as u64);
        (0..).zip(&rates).for_each(|(step, rate)| is_near(*rate, schedule.rate(step)));
    }
}

/// In a stage with a time limit, rates do not exceed those of warm-up until the number of steps is decided.
#[test]
fn a_share_of_warm_up_is_of_the_steps_that_a_time_holds() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = shared(folder.path());
    (recipe.run.minutes, recipe.checkpoint.every_s) = (Some(1.0), None);
    stopped_at(folder.path(), &recipe, 20.5, 6);
    let decided: Vec<u64> =
        serde_json::from_slice(&std::fs::read(folder.path().join("steps.json")).unwrap()).unwrap();
    let (rates, schedule) = (rates(folder.path()), RateSchedule::new(&recipe, 0, decided[0]));
    assert_eq!((rates.len(), decided[0]), (20, 20));
    assert!(rates[0] < 1e-6 * recipe.optimizer.lr, "{rates:?}");
    for (step, rate) in (0..).zip(&rates).skip(4) {
        is_near(*rate, schedule.rate(step));
    }
}

/// Stores whose steps take `step_s` of their index.
struct Slow {
    inner: Stores,
    time: StageClock,
    round: u64,
    step_s: fn(u64) -> f64,
}

struct SlowSource {
    inner: Box<dyn Source>,
    time: StageClock,
    step_s: fn(u64) -> f64,
    steps: u64,
}

impl Sources for Slow {
    fn open(&self, recipe: &Recipe, index: usize, share: StepShare, cursor: Option<&Cursor>) -> OpenedSource {
        let inner = self.inner.open(recipe, index, share, cursor)?;
        Ok(Box::new(SlowSource { inner, time: self.time.clone(), step_s: self.step_s, steps: 0 }))
    }

    fn steps(&self, recipe: &Recipe, index: usize) -> Result<Option<u64>> {
        self.inner.steps(recipe, index)
    }

    fn round(&self, _: &Recipe) -> u64 {
        self.round
    }
}

impl Source for SlowSource {
    fn step(&mut self, policy: &Trainer) -> Result<Vec<MicroBatch>> {
        let now_s = &self.time.now_s;
        now_s.set(now_s.get() + (self.step_s)(self.steps));
        self.steps += 1;
        self.inner.step(policy)
    }

    fn cursor(&self) -> &Cursor {
        self.inner.cursor()
    }

    fn wait_s(&self) -> f64 {
        self.inner.wait_s()
    }
}

/// A run with these step durations and a limit of 60 s: the number of steps, and the final clock.
fn timed(round: u64, step_s: fn(u64) -> f64) -> (u64, f64) {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = shared(folder.path());
    (recipe.run.minutes, recipe.checkpoint.every_s) = (Some(1.0), None);
    recipe.stage[0].micro_batches = 1;
    let (stop, time) = (AtomicBool::new(false), StageClock::until(60.0));
    let mut watch = Watch { warnings: Vec::new(), stop_at: None, stop: &stop };
    let inner = Stores::open(&recipe, None, VOCAB).unwrap();
    let sources: Box<dyn Sources> = Box::new(Slow { inner, time: time.clone(), round, step_s });
    let (outcome, _) = alone_from(folder.path(), &recipe, (sources, Some(&time)), &stop, &mut watch);
    assert_eq!(outcome, Outcome::Finished);
    (rates(folder.path()).len() as u64, time.now_s.get())
}

/// The number of rounds within a time limit accounts for their slow first steps.
#[test]
fn the_time_of_writing_answers_counts() {
    let (steps, ended_s) = timed(4, |step| if step.is_multiple_of(4) { 7.0 } else { 1.0 });
    assert_eq!((steps, ended_s), (24, 60.0));
}

#[test]
fn a_machine_that_becomes_slower_makes_fewer_steps_and_not_later_ones() {
    assert_eq!(timed(1, |_| 4.0), (15, 60.0));
    let (steps, ended_s) = timed(1, |step| if step < 5 { 4.0 } else { 12.0 });
    assert!(steps <= 9 && (48.0..=64.0).contains(&ended_s), "{steps} steps until {ended_s}");
    let (steps, ended_s) = timed(1, |step| if step < 5 { 4.0 } else { 1.0 });
    assert!(steps >= 40 && (58.0..=61.0).contains(&ended_s), "{steps} steps until {ended_s}");
}
