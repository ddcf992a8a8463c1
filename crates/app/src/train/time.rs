//! Timetable of a run: deadlines for stages and measurements so that everything ends within `run.minutes`, and the
//! remaining time.

use std::cell::RefCell;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fathom_base::clock::{Clock, Deadline};
use fathom_base::metrics::{Event, read_events};
use fathom_train::StageTime;
use fathom_train::recipe::{InitName, Recipe, Stage};

use super::moments;

/// Shares of a timed run for its measurements: of the initial weights, before the extension, and at the end.
const FIRST_SHARE: f64 = 0.06;
const BEFORE_SHARE: f64 = 0.05;
const AFTER_SHARE: f64 = 0.15;
/// Time reserved for export and report: a share of the run plus a fixed number of seconds, at most a tenth of the run.
const TAIL_SHARE: f64 = 0.01;
const TAIL_S: f64 = 2.0;
/// Factor on the time that a step's FLOPs suggest, for the step that is reserved for a later stage.
const ONE_STEP: f64 = 1.1;
/// Minimum time of all stages, in seconds, however long the text took, and as a share of a shorter run.
const LEAST_S: f64 = 5.0;
const LEAST_SHARE: f64 = 0.5;
/// Number of recent steps over which the speed is averaged.
const RECENT: f64 = 4.0;

/// Moments at which a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before the first step, on initial weights.
    First,
    /// Before the extension.
    Before,
    /// After the last step.
    After,
}

impl When {
    /// Returns how many stages are done at this moment; `None` if a run of the recipe does not have it.
    pub fn done(self, recipe: &Recipe) -> Option<usize> {
        match self {
            When::First => (moments::first_weights(recipe) == Some(InitName::Induction)).then_some(0),
            When::Before => moments::before(recipe),
            When::After => Some(recipe.stage.len()),
        }
    }

    /// Returns its name in the log.
    pub fn name(self, recipe: &Recipe) -> &'static str {
        match self {
            When::First => "first_weights",
            When::Before => moments::names(recipe)[0],
            When::After => moments::names(recipe)[1],
        }
    }
}

/// Timetable of a run, or of one of its adapters, which take turns.
pub struct Timetable {
    clock: Clock,
    /// Clock time by which everything has to end.
    ends_s: f64,
    /// Total time in seconds.
    whole_s: f64,
    /// Relative time of each stage, and FLOPs of one of its steps.
    stages: Vec<(f64, f64)>,
    /// Number of stages done at each measurement, and the measurement's share of the total time.
    measured: Vec<(usize, f64)>,
    /// Number of models that take turns.
    models: f64,
    now: Mutex<Now>,
}

/// State of the run so far.
#[derive(Default)]
struct Now {
    /// Current stage, and when its first step began.
    entered: Option<(usize, f64)>,
    /// Seconds per FLOP in recent steps.
    rate: Option<f64>,
}

impl Timetable {
    /// Makes the timetable of a model in the run of the recipe `whole` that began at `began_s` on this clock and had
    /// taken `spent_s` before; `flops` are those of its steps, and `measures` whether it measures. `None` without
    /// minutes, in which case every stage has a number of steps (`check_training`).
    pub fn of(
        whole: &Recipe,
        (flops, measures): (&[f64], bool),
        clock: &Clock,
        (began_s, spent_s): (f64, f64),
    ) -> Option<Timetable> {
        let whole_s = whole.run.minutes? * 60.0;
        let of_stage = |(stage, flops): (&Stage, f64)| (stage.minutes_share, flops);
        let flops = flops.iter().copied().chain(std::iter::repeat(0.0));
        let measured = [(When::First, FIRST_SHARE), (When::Before, BEFORE_SHARE), (When::After, AFTER_SHARE)];
        let done = |(when, share): (When, f64)| Some((when.done(whole)?, share));
        Some(Timetable {
            clock: clock.clone(),
            ends_s: began_s + whole_s - spent_s,
            whole_s,
            stages: whole.stage.iter().zip(flops).map(of_stage).collect(),
            measured: measured.into_iter().filter(|_| measures).filter_map(done).collect(),
            models: whole.adapters.len().max(1) as f64,
            now: Mutex::default(),
        })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the last measurement has to end, so that export and report end in time.
    fn measured_by_s(&self) -> f64 {
        self.ends_s - (TAIL_SHARE * self.whole_s + TAIL_S).min(0.1 * self.whole_s)
    }

    /// Returns when the steps of a stage that began at `began_s` have to end: the time left, without that of
    /// measurements, is divided by the stages' shares. A stage cedes up to half of its time to later stages that could
    /// not make a step otherwise, at `rate` seconds per FLOP.
    fn stage_ends_s(&self, stage: usize, began_s: f64, rate: f64) -> f64 {
        let later = self.measured.iter().filter(|(done, _)| *done > stage);
        let measuring_s = later.map(|(_, share)| share * self.whole_s).sum::<f64>();
        let shares = self.stages.iter().map(|(share, _)| share);
        let (all, left): (f64, f64) = (shares.clone().sum(), shares.skip(stage).sum());
        let least_s = LEAST_S.min(LEAST_SHARE * self.whole_s) * left / all;
        let room_s = (self.measured_by_s() - measuring_s - began_s).max(least_s);
        let one_step_s = |(share, flops): &(f64, f64)| (room_s * share / left).max(rate * flops * ONE_STEP);
        let later_s: f64 = self.stages.iter().skip(stage + 1).map(one_step_s).sum();
        let own_s = room_s * self.stages[stage].0 / left;
        began_s + own_s.min((room_s - later_s).max(0.5 * own_s))
    }

    /// Returns the deadline of a measurement that starts now. The last one gets all the time left.
    pub fn measure_until(&self, when: When) -> Deadline {
        let now_s = self.clock.now_s();
        let left_s = (self.measured_by_s() - now_s).max(0.0);
        let given_s = match when {
            When::First => left_s.min(FIRST_SHARE * self.whole_s),
            When::Before => left_s.min(BEFORE_SHARE * self.whole_s),
            When::After => left_s,
        };
        self.clock.at(now_s + given_s / self.models)
    }

    /// Returns the deadline of the whole run.
    pub fn end(&self) -> Deadline {
        self.clock.at(self.ends_s)
    }

    /// Records the time of a step.
    pub fn made(&self, stage: usize, step_s: f64) {
        let flops = self.stages.get(stage).map_or(0.0, |(_, flops)| *flops);
        if flops > 0.0 {
            let (rate, mut now) = (step_s / flops, self.now());
            now.rate = Some(now.rate.map_or(rate, |known| known + (rate - known) / RECENT));
        }
    }
}

impl StageTime for Timetable {
    fn now_s(&self) -> f64 {
        self.clock.now_s()
    }

    fn left_s(&self, stage: usize, spent_s: f64) -> f64 {
        let now_s = self.clock.now_s();
        let mut now = self.now();
        let entered = now.entered.filter(|(entered, _)| *entered == stage);
        let (_, began_s) = *now.entered.insert(entered.unwrap_or((stage, now_s - spent_s * self.models)));
        self.stage_ends_s(stage, began_s, now.rate.unwrap_or(0.0)) - now_s
    }

    fn step_s(&self, stage: usize) -> Option<f64> {
        let flops = self.stages.get(stage).map(|(_, flops)| *flops).filter(|flops| *flops > 0.0)?;
        Some(self.now().rate? * flops)
    }
}

/// Returns the seconds that a run has taken so far, from its log.
pub fn spent_s(log: &Path) -> f64 {
    let events = read_events(log).unwrap_or_default();
    let spent = events.iter().rev().find_map(|event| match Event::from_value(event)? {
        Event::Step(step) => Some(step.time_s),
        Event::Done(done) => Some(done.time_s),
        _ => None,
    });
    spent.filter(|seconds| seconds.is_finite()).unwrap_or(0.0)
}

struct StageWork {
    /// Number of steps, if fixed; else 0.
    steps: u64,
    /// FLOPs of a step.
    flops: f64,
}

/// Remaining work of a run without a time limit.
pub(super) struct Ahead {
    stages: Vec<StageWork>,
    /// Stages that a measurement follows.
    measured: Vec<usize>,
    /// Seconds of a measurement, taken from the previous one.
    pub measure_s: f64,
}

impl Ahead {
    /// Makes the work of a run from its first stage on; `measures` is whether it measures between stages.
    pub fn new(recipe: &Recipe, flops: &[f64], measures: bool) -> Ahead {
        let flops = flops.iter().copied().chain(std::iter::repeat(0.0));
        let work = |(stage, flops): (&Stage, f64)| StageWork { steps: stage.steps.unwrap_or(0), flops };
        let stages: Vec<StageWork> = recipe.stage.iter().zip(flops).map(work).collect();
        let last = stages.len().saturating_sub(1);
        let before = moments::before(recipe).and_then(|done| done.checked_sub(1));
        let measured = before.into_iter().chain([last]).filter(|_| measures).collect();
        Ahead { stages, measured, measure_s: 0.0 }
    }

    /// Returns the expected seconds after a stage whose steps take `step_s`: later stages scale with their FLOPs.
    pub fn after(&self, stage: usize, step_s: f64) -> f64 {
        let now = self.stages.get(stage).map_or(0.0, |part| part.flops);
        let rate = if now > 0.0 { step_s / now } else { 0.0 };
        let seconds = |part: &StageWork| part.steps as f64 * part.flops * rate;
        let later: f64 = self.stages.iter().skip(stage + 1).map(seconds).sum();
        let measurements = self.measured.iter().filter(|measured| **measured >= stage).count();
        later + measurements as f64 * self.measure_s
    }
}

/// Remaining time of each model of a run, as far as known. The models take turns, so each waits for all.
pub(super) struct Turns(RefCell<Vec<Option<f64>>>);

impl Turns {
    /// Makes the record of this many models.
    pub fn of(models: usize) -> Turns {
        Turns(RefCell::new(vec![None; models]))
    }

    /// Returns the remaining seconds of the other models, given that the one at `index` has `own_s`; models without a
    /// record count as equal.
    pub fn of_others(&self, index: usize, own_s: f64) -> f64 {
        let mut known = self.0.borrow_mut();
        known[index] = Some(own_s);
        let all: f64 = known.iter().map(|seconds| seconds.unwrap_or(own_s)).sum();
        // Exactly 0 for a single model, without rounding.
        if known.len() == 1 { 0.0 } else { all - own_s }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use fathom_train::recipe::NamedAdapter;

    use super::*;

    fn recipe(steps: [Option<u64>; 3], minutes: Option<f64>) -> Recipe {
        let stage = steps.map(|steps| Stage { steps, ..Stage::default() }).to_vec();
        let mut recipe = Recipe { stage, ..Recipe::default() };
        recipe.run.minutes = minutes;
        recipe
    }

    /// Returns a clock, and a function that advances it by seconds.
    fn manual_clock() -> (Clock, impl Fn(f64)) {
        let us = Arc::new(AtomicU64::new(0));
        let shown = us.clone();
        let clock = Clock::of(move || shown.load(Ordering::Relaxed) as f64 / 1e6);
        (clock, move |seconds: f64| _ = us.fetch_add((seconds * 1e6) as u64, Ordering::Relaxed))
    }

    #[test]
    fn what_is_left_is_that_of_the_run() {
        let fixed = recipe([Some(10), Some(20), Some(5)], None);
        let mut ahead = Ahead::new(&fixed, &[1e9, 2e9, 8e9], true);
        ahead.measure_s = 7.0;
        // Twenty steps with twice the work, five with eight times; measurements follow the second and third stages.
        assert_eq!(ahead.after(0, 0.5), 20.0 * 1.0 + 5.0 * 4.0 + 14.0);
        assert_eq!([ahead.after(1, 1.0), ahead.after(2, 4.0)], [5.0 * 4.0 + 14.0, 7.0]);
    }

    const FLOPS: [f64; 3] = [1e11, 1.5e11, 7.4e12];

    /// A machine: seconds per FLOP over the time of the run, and seconds of text preparation and export.
    struct Machine {
        rate: fn(f64) -> f64,
        text_s: f64,
        tail_s: f64,
    }

    /// Simulates the phases of the quickstart: steps are chosen by the time left, and measurements end at their
    /// deadlines, the last one late by a piece of work. Returns the steps of each stage, and the time at the end.
    fn simulated(minutes: f64, machine: &Machine) -> ([u64; 3], f64) {
        let (clock, spend) = manual_clock();
        let mut recipe = recipe([None; 3], Some(minutes));
        recipe.model.init = InitName::Induction;
        for (stage, share) in recipe.stage.iter_mut().zip([0.4, 0.4, 0.2]) {
            stage.minutes_share = share;
        }
        let time = Timetable::of(&recipe, (&FLOPS, true), &clock, (0.0, 0.0)).unwrap();
        spend(machine.text_s);
        let seconds = |flops: f64| flops * (machine.rate)(clock.now_s());
        let measure = |when: When| {
            let until = time.measure_until(when);
            let piece_s = seconds(5e10).min(until.left_s().max(0.0) + seconds(5e9));
            spend(until.left_s().max(piece_s));
        };
        measure(When::First);
        let mut steps = [0; 3];
        for (stage, steps) in steps.iter_mut().enumerate() {
            let first_s = time.step_s(stage).filter(|_| *steps == 0);
            if first_s.is_none_or(|first_s| first_s <= time.left_s(stage, 0.0)) {
                loop {
                    let step_s = seconds(FLOPS[stage]);
                    spend(step_s);
                    time.made(stage, step_s);
                    *steps += 1;
                    if time.left_s(stage, 0.0) < step_s {
                        break;
                    }
                }
            }
            match stage {
                1 => measure(When::Before),
                2 => measure(When::After),
                _ => {}
            }
        }
        spend(machine.tail_s);
        (steps, clock.now_s())
    }

    /// `fathom quickstart --minutes N` ends at N minutes, neither later nor much earlier, on any machine.
    #[test]
    fn a_timed_run_ends_in_its_time_on_any_machine() {
        const FAST: f64 = 1.0 / 3e11;
        let machines: [(&str, Machine); 6] = [
            ("two idle cores", Machine { rate: |_| FAST, text_s: 12.0, tail_s: 3.0 }),
            ("sixteen cores", Machine { rate: |_| FAST / 8.0, text_s: 3.0, tail_s: 1.0 }),
            ("two slow cores", Machine { rate: |_| FAST * 4.0, text_s: 40.0, tail_s: 6.0 }),
            ("other work from the second minute on", {
                Machine {
                    rate: |now_s| if now_s < 60.0 { FAST } else { FAST * 6.0 },
                    text_s: 12.0,
                    tail_s: 6.0,
                }
            }),
            ("other work until the fifth minute", {
                Machine {
                    rate: |now_s| if now_s < 300.0 { FAST * 6.0 } else { FAST },
                    text_s: 60.0,
                    tail_s: 3.0,
                }
            }),
            ("bursts of other work", {
                Machine {
                    rate: |now_s| if (now_s as u64 / 20).is_multiple_of(3) { FAST * 5.0 } else { FAST },
                    text_s: 20.0,
                    tail_s: 6.0,
                }
            }),
        ];
        for (what, machine) in &machines {
            let (steps, ended_s) = simulated(10.0, machine);
            assert!((570.0..=606.0).contains(&ended_s), "{what}: {ended_s} s, {steps:?} steps");
            assert!(steps.iter().all(|steps| *steps > 0), "{what}: {steps:?} steps");
        }
        // A minute has no room for a step of 32K on slow cores; then none is made, and the time limit is kept.
        let (steps, ended_s) = simulated(1.0, &machines[0].1);
        assert!((54.0..=63.0).contains(&ended_s), "{ended_s} s, {steps:?} steps");
        let slow = Machine { rate: |_| FAST * 20.0, text_s: 25.0, tail_s: 4.0 };
        let (steps, ended_s) = simulated(1.0, &slow);
        assert!((54.0..=75.0).contains(&ended_s), "{ended_s} s, {steps:?} steps");
        assert!(steps[0] > 0 && steps[2] == 0, "{steps:?}");
    }

    #[test]
    fn a_resumed_run_has_what_is_left_of_its_time() {
        let (clock, spend) = manual_clock();
        let timed = recipe([None; 3], Some(10.0));
        spend(5.0);
        let time = Timetable::of(&timed, (&FLOPS, false), &clock, (5.0, 400.0)).unwrap();
        assert_eq!(time.end().left_s(), 200.0);
        assert!(Timetable::of(&recipe([Some(1); 3], None), (&FLOPS, false), &clock, (0.0, 0.0)).is_none());
        // A stage that is entered again counts the time that it had before.
        let [fresh, again] = [0.0, 30.0].map(|spent_s| {
            let time = Timetable::of(&timed, (&FLOPS, false), &clock, (5.0, 400.0)).unwrap();
            time.left_s(0, spent_s)
        });
        assert!((fresh - again - 20.0).abs() < 1e-9, "{fresh} {again}");
    }

    /// Three adapters share the run's time and end together.
    #[test]
    fn adapters_share_the_time_of_measurements() {
        let (clock, _) = manual_clock();
        let mut timed = recipe([None; 3], Some(10.0));
        let left_s = |recipe: &Recipe, when| {
            Timetable::of(recipe, (&FLOPS, true), &clock, (0.0, 0.0)).unwrap().measure_until(when).left_s()
        };
        let [before, after] = [When::Before, When::After].map(|when| left_s(&timed, when));
        timed.adapters = vec![NamedAdapter::default(); 3];
        let [each_before, each_after] = [When::Before, When::After].map(|when| left_s(&timed, when));
        assert_eq!([3.0 * each_before, 3.0 * each_after], [before, after]);
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
