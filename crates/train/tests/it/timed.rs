//! How long stages are, and what their learning rates make of it.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fathom_base::metrics::{Event, read_events};
use fathom_tensor::mesh::Grid;
use fathom_text::loader::Cursor;
use fathom_train::recipe::{Checkpoint, Recipe};
use fathom_train::{MicroBatch, Outcome, Result, Share, Source, Sources, Stores, Trainer, stage};

use crate::again::alone_from;
use crate::survive::{VOCAB, Watch, mesh, recipe, write_store};

/// One stage without a length, whose warm-up is a share.
fn shared(folder: &Path) -> Recipe {
    write_store(&folder.join("store"));
    let mut recipe = recipe(folder, mesh(Grid::default(), 0), Checkpoint::default());
    recipe.schedule.warmup_steps = Some(0);
    recipe.schedule.warmup_share = Some(0.3);
    recipe.stage[0].steps = None;
    recipe
}

/// Runs it to its end, stopped once after a step.
fn stopped_at(folder: &Path, recipe: &Recipe, seconds: f64, step: u64) {
    let mut outcome = Outcome::Interrupted;
    for stop_at in [Some(step), None] {
        if outcome == Outcome::Interrupted {
            let (sources, stop) = (Stores::open(recipe, None, VOCAB).unwrap(), AtomicBool::new(false));
            let mut watch = Watch { warnings: Vec::new(), stop_at, stop: &stop };
            let sources: Box<dyn Sources> = Box::new(sources);
            (outcome, _) = alone_from(folder, recipe, (sources, vec![seconds]), &stop, &mut watch);
        }
    }
    assert_eq!(outcome, Outcome::Finished);
}

/// The rates of all steps.
fn rates(folder: &Path) -> Vec<f64> {
    let events = read_events(folder.join("metrics.jsonl")).unwrap();
    let rate = |event: &serde_json::Value| match Event::from_value(event) {
        Some(Event::Step(step)) => Some(step.lr),
        _ => None,
    };
    events.iter().filter_map(rate).collect()
}

/// The same number, as far as text keeps it.
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
        stopped_at(folder.path(), &recipe, 0.0, 2);
        let rates = rates(folder.path());
        let schedule = stage::schedule(&recipe, 0, rates.len() as u64);
        assert!(rates.len() > 4 && steps.is_none_or(|steps| rates.len() as u64 == steps), "{rates:?}");
        assert_eq!(schedule.warmup_steps, (0.3 * rates.len() as f64).ceil() as u64);
        (0..).zip(&rates).for_each(|(step, rate)| is_near(*rate, schedule.rate(step)));
    }
}

/// Of a stage that has seconds, until its steps are decided the rates are not above those of its warm-up.
#[test]
fn a_share_of_warm_up_is_of_the_steps_that_a_time_holds() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = shared(folder.path());
    (recipe.run.minutes, recipe.checkpoint.every_s) = (Some(1.0), None);
    stopped_at(folder.path(), &recipe, 2.0, 6);
    let decided: Vec<u64> =
        serde_json::from_slice(&std::fs::read(folder.path().join("steps.json")).unwrap()).unwrap();
    let (rates, schedule) = (rates(folder.path()), stage::schedule(&recipe, 0, decided[0]));
    assert_eq!(rates.len() as u64, decided[0]);
    assert!(rates[0] < 1e-6 * recipe.optimizer.lr, "{rates:?}");
    for (step, rate) in (0..).zip(&rates).skip(4) {
        is_near(*rate, schedule.rate(step));
    }
}

/// Stores of which every fourth step waits, as for answers that are written.
struct Waiting(Stores);

struct WaitingSource {
    inner: Box<dyn Source>,
    steps: u64,
}

const ROUND: u64 = 4;
const WAIT_S: f64 = 0.2;

impl Sources for Waiting {
    fn open(
        &self,
        recipe: &Recipe,
        index: usize,
        share: Share,
        cursor: Option<&Cursor>,
    ) -> Result<Box<dyn Source>> {
        let inner = self.0.open(recipe, index, share, cursor)?;
        Ok(Box::new(WaitingSource { inner, steps: 0 }))
    }

    fn steps(&self, recipe: &Recipe, index: usize) -> Result<Option<u64>> {
        self.0.steps(recipe, index)
    }

    fn round(&self, _: &Recipe) -> u64 {
        ROUND
    }
}

impl Source for WaitingSource {
    fn step(&mut self, policy: &Trainer) -> Result<Vec<MicroBatch>> {
        if self.steps.is_multiple_of(ROUND) {
            std::thread::sleep(Duration::from_secs_f64(WAIT_S));
        }
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

/// A time holds as many rounds as their first steps leave it, however short the others are.
#[test]
fn the_time_of_writing_answers_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = shared(folder.path());
    (recipe.run.minutes, recipe.checkpoint.every_s) = (Some(1.0), None);
    recipe.stage[0].micro_batches = 1;
    let (stop, seconds) = (AtomicBool::new(false), 3.0);
    let mut watch = Watch { warnings: Vec::new(), stop_at: None, stop: &stop };
    let sources: Box<dyn Sources> = Box::new(Waiting(Stores::open(&recipe, None, VOCAB).unwrap()));
    let (outcome, _) = alone_from(folder.path(), &recipe, (sources, vec![seconds]), &stop, &mut watch);
    assert_eq!(outcome, Outcome::Finished);
    let most = ((seconds / WAIT_S) as u64 + 1) * ROUND;
    let steps = rates(folder.path()).len() as u64;
    assert!(steps <= most, "{steps} steps, which wait for {} s", steps.div_ceil(ROUND) as f64 * WAIT_S);
}
