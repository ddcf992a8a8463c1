//! Failures: nothing passes because a rail broke, hung or was overloaded, unless the file allows it by name.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fathom_base::clock::Clock;
use fathom_guard::{
    Action, ConfiguredRail, Context, Cost, Decision, Direction, Engine, Failure, Finding, Horizon, Manifest,
    Metrics, OnFailure, Opinion, Rail, RailInput, Reason, Subject, Until,
};

use crate::support::config;

static MANIFEST: Manifest = Manifest {
    name: "test",
    summary: "a rail of a test",
    directions: &Direction::ALL,
    actions: &[Action::Block, Action::Mask],
    cost: Cost::Model,
};

static OF_TEXT: Manifest = Manifest {
    name: "test",
    summary: "a rail of a test",
    directions: &Direction::ALL,
    actions: &[Action::Block, Action::Mask],
    cost: Cost::Text,
};

type Judge = dyn Fn(&RailInput<'_>, &Until) -> Result<Opinion, Failure> + Send + Sync;

struct Test(Box<Judge>);

impl Rail for Test {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        (self.0)(judged, until)
    }

    fn horizon(&self) -> Horizon {
        Horizon::Bytes(0)
    }
}

fn engine_of(rails: Vec<(&'static Manifest, OnFailure, Box<Judge>)>, clock: Clock) -> Engine {
    let mut config = config("[[rail]]\nuse = \"hidden_text\"\non = [\"input\"]\ntimeout_ms = 100\n");
    let setting = config.rails[0].setting.clone();
    config.rails = rails
        .into_iter()
        .enumerate()
        .map(|(at, (manifest, on_failure, judge))| ConfiguredRail {
            setting: fathom_guard::Setting {
                name: format!("rail{at}"),
                action: Action::Block,
                on_failure,
                ..setting.clone()
            },
            manifest,
            rail: Arc::new(Test(judge)),
        })
        .collect();
    Engine::new(Arc::new(config), clock, Arc::new(Metrics::default()))
}

/// An engine whose rails may take half a minute.
fn patient(rails: Vec<(&'static Manifest, OnFailure, Box<Judge>)>) -> Engine {
    let mut config = fathom_guard::Config::clone(engine_of(rails, Clock::start()).config());
    config.rails.iter_mut().for_each(|rail| rail.setting.timeout_ms = 30_000);
    Engine::new(Arc::new(config), Clock::start(), Arc::new(Metrics::default()))
}

fn input() -> Subject {
    Subject::new(Direction::Input, Arc::new(Context::default()))
}

#[test]
fn a_rail_that_fails_panics_hangs_or_answers_nonsense_blocks() {
    let cases: Vec<(Box<Judge>, Reason)> = vec![
        (Box::new(|_, _| Err(Failure::Unavailable("gone".into()))), Reason::Failed),
        (Box::new(|_, _| Err(Failure::Malformed("no verdict".into()))), Reason::Failed),
        (Box::new(|_, _| Err(Failure::Unreadable("not text".into()))), Reason::Unreadable),
        (Box::new(|_, _| panic!("a bug")), Reason::Panicked),
        (
            Box::new(|_, _| {
                std::thread::sleep(Duration::from_millis(300));
                Ok(Opinion::clean())
            }),
            Reason::TimedOut,
        ),
        (Box::new(|_, _| Ok(Opinion::of(Reason::Pattern, vec![Finding::new(1..99, "x")]))), Reason::Failed),
        (Box::new(|_, _| Ok(Opinion::of(Reason::Pattern, vec![Finding::new(1..2, "x")]))), Reason::Failed),
    ];
    for (at, (judge, reason)) in cases.into_iter().enumerate() {
        let engine = engine_of(vec![(&MANIFEST, OnFailure::Block, judge)], Clock::start());
        let outcome = engine.judge("äö", &input());
        let verdict = outcome.block().unwrap();
        assert_eq!(
            (verdict.reason, verdict.failed, verdict.decision),
            (reason, true, Decision::Block),
            "case {at}"
        );
        assert_eq!(engine.degraded(), ["rail0"]);
    }
    let engine =
        engine_of(vec![(&OF_TEXT, OnFailure::Block, Box::new(|_, _| panic!("a bug")))], Clock::start());
    assert_eq!(engine.judge("a", &input()).block().unwrap().reason, Reason::Panicked);
}

#[test]
fn three_failures_open_the_breaker_for_a_minute() {
    let now = Arc::new(Mutex::new(0.0));
    let reads = now.clone();
    let calls = Arc::new(AtomicUsize::new(0));
    let counts = calls.clone();
    let judge: Box<Judge> = Box::new(move |_, _| {
        counts.fetch_add(1, Ordering::Relaxed);
        Err(Failure::Unavailable("gone".into()))
    });
    let engine =
        engine_of(vec![(&OF_TEXT, OnFailure::Block, judge)], Clock::of(move || *reads.lock().unwrap()));
    let reasons: Vec<Reason> = (0..5).map(|_| engine.judge("a", &input()).block().unwrap().reason).collect();
    assert_eq!(reasons[2..], [Reason::Failed, Reason::BreakerOpen, Reason::BreakerOpen]);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    *now.lock().unwrap() = 61.0;
    assert_eq!(engine.judge("a", &input()).block().unwrap().reason, Reason::Failed);
}

#[test]
fn a_failure_that_is_allowed_by_name_passes_and_is_reported() {
    let judge: Box<Judge> = Box::new(|_, _| Err(Failure::Unavailable("gone".into())));
    let engine = engine_of(vec![(&OF_TEXT, OnFailure::Allow, judge)], Clock::start());
    let outcome = engine.judge("a", &input());
    assert_eq!((outcome.blocked, outcome.verdicts[0].failed), (None, true));
    assert_eq!(engine.degraded(), ["rail0"]);
}

#[test]
fn the_first_block_ends_the_others() {
    let slow = |seconds: u64| -> Box<Judge> {
        Box::new(move |_, until: &Until| {
            let began = Instant::now();
            while until.wanted() && began.elapsed() < Duration::from_secs(seconds) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Failure::TimedOut)
        })
    };
    let block: Box<Judge> = Box::new(|judged, _| Ok(Opinion::whole(judged, Reason::Unsafe, "S1")));
    let rails = vec![
        (&MANIFEST, OnFailure::Block, slow(20)),
        (&MANIFEST, OnFailure::Block, block),
        (&MANIFEST, OnFailure::Block, slow(20)),
    ];
    let engine = patient(rails);
    let outcome = engine.judge("a", &input());
    assert_eq!(outcome.block().unwrap().rail, "rail1");
}

#[test]
fn empty_texts_are_judged_too() {
    let block: Box<Judge> = Box::new(|judged, _| Ok(Opinion::whole(judged, Reason::Unsafe, "empty")));
    let engine = engine_of(vec![(&OF_TEXT, OnFailure::Block, block)], Clock::start());
    assert!(engine.judge("", &input()).blocked.is_some());
}
