//! `fathom train` and `fathom quickstart`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};
use fathom_app::lesson::{Length, LessonOutcome, Rows, teach};
use fathom_app::library::{LIBRARY, load};
use fathom_app::rounds::run as rounds;
use fathom_app::train::{self, Order};
use fathom_app::{Job, train as run_job};
use fathom_base::clock::Clock;
use fathom_base::ranks::Claim;
use fathom_base::recipe::{Layers, Loaded};
use fathom_train::Outcome;
use fathom_train::recipe::{Recipe, WriteName};

use super::plan;
use crate::exit::{ExitCode, RESUME};
use crate::{args, closing, console, live, program, signals};

/// Share of a quickstart for its lesson, including the evaluations before and after.
const LESSON_SHARE: f64 = 0.13;
/// Bytes of text used per minute of a quickstart, and at least.
const BYTES_A_MINUTE: f64 = 3.5e6;
const LEAST_BYTES: f64 = 4e6;
/// Length from which a quickstart extends to 128K.
const LONG_MINUTES: f64 = 60.0;

/// The recipe of `fathom train`.
pub fn recipe(args: &args::Train) -> Result<Loaded<Recipe>> {
    let mut layers = Layers::with_library(LIBRARY).recipe(&args.recipe).sets(&args.settings);
    if let Some(out) = &args.out {
        layers = layers.flag("--out", "run.out", &out.display().to_string());
    }
    if let Some(machine) = args.machine {
        layers = layers.flag("--machine", "machine.kind", machine.kind().name());
    }
    let chaos = args.chaos.map(|seed| seed.to_string());
    if let Some(seed) = &chaos {
        layers = layers.flag("--chaos", "machine.chaos", seed);
    }
    Ok(load(layers)?)
}

/// Runs `fathom train`.
pub fn train(args: &args::Train) -> Result<ExitCode> {
    let loaded = recipe(args)?;
    if args.dry_run {
        return dry_run(args, &loaded);
    }
    run(loaded, args.rank.claim(), (args.allow_processes, None))
}

/// Checks the recipe as a run would, then plans it.
fn dry_run(args: &args::Train, loaded: &Loaded<Recipe>) -> Result<ExitCode> {
    if loaded.value.adapters.is_empty() {
        fathom_train::check_training(loaded)?;
    } else {
        train::check(loaded)?;
    }
    let machine = args.machine.map(|machine| format!("machine.kind={}", machine.kind().name()));
    let settings = args.settings.iter().cloned().chain(machine).collect();
    plan::run(&args::Plan { recipe: args.recipe.clone(), settings, ..args::Plan::default() })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `fathom quickstart`.
pub fn quickstart(args: &args::Quickstart) -> Result<ExitCode> {
    let recipe =
        if args.steps.is_none() && args.minutes >= LONG_MINUTES { "quickstart-128k" } else { "quickstart" };
    let mut layers: Layers<'_> = Layers::with_library(LIBRARY).recipe(recipe);
    let out = args.out.display().to_string();
    layers = layers.flag("--out", "run.out", &out);
    if !args.data.is_empty() {
        let paths: Vec<String> =
            args.data.iter().map(|path| format!("{:?}", path.display().to_string())).collect();
        layers = layers.flag("--data", "data.paths", &format!("[{}]", paths.join(", ")));
    }
    let clock = Clock::start();
    let asked = load(layers.clone().sets(&args.settings))?.value;
    let rows = Rows::below(&asked.data.paths);
    if rows.is_none() {
        console::note(
            "the text has too few functions with doc comments, so the model will be taught no lesson",
        );
    }
    // With a fixed number of steps and no clock, two runs are identical.
    let length = match args.steps {
        Some(steps) => {
            for stage in 0..asked.stage.len() {
                layers = layers.flag("--steps", &format!("stage.{stage}.steps"), &steps.to_string());
            }
            layers = layers.flag("--minutes", "run.minutes", "none");
            Length::Steps(steps)
        }
        None => {
            let (minutes, share) = (args.minutes, if rows.is_some() { LESSON_SHARE } else { 0.0 });
            layers = layers.flag("--minutes", "run.minutes", &(minutes * (1.0 - share)).to_string());
            // Preparing more text than can be used would waste time.
            let enough = known_bytes(&args.out).unwrap_or((minutes * BYTES_A_MINUTE).max(LEAST_BYTES) as u64);
            if asked.data.max_bytes.is_some_and(|bytes| bytes > enough) {
                layers = layers.flag("--minutes", "data.max_bytes", &enough.to_string());
            }
            Length::Until(clock.within(minutes * 60.0), minutes * 60.0)
        }
    };
    let loaded = load(layers.sets(&args.settings))?;
    let lesson = rows.map(|rows| Lesson { rows, length, clock });
    run(loaded, Claim::default(), (false, lesson))
}

/// Text limit of the run in this folder, which it keeps when continued with more minutes.
fn known_bytes(out: &Path) -> Option<u64> {
    let began = load(Layers::new().file(out.join("recipe.toml"))).ok()?;
    began.value.data.max_bytes
}

/// Final lesson of a quickstart.
struct Lesson {
    rows: Rows,
    length: Length,
    /// Starts with the quickstart.
    clock: Clock,
}

/// The command line, for the run's log.
fn as_typed() -> String {
    format!("fathom {}", program::words().join(" "))
}

fn run(
    loaded: Loaded<Recipe>,
    claim: Claim,
    (allow_processes, lesson): (bool, Option<Lesson>),
) -> Result<ExitCode> {
    train::check(&loaded)?;
    for row in loaded.rows().iter().filter(|row| row.source != "default") {
        console::detail(&format!("{} = {} ({})", row.path, row.value, row.source));
    }
    let stop = Arc::new(AtomicBool::new(false));
    signals::ask(&stop)?;
    let listener = live::Run::new();
    let clock = lesson.as_ref().map_or_else(Clock::start, |lesson| lesson.clock.clone());
    let command = as_typed().trim().to_string();
    let order = Order { command, claim, stop, allow_processes, clock, ..Order::default() };
    if loaded.value.rounds.write != WriteName::None {
        let done = rounds(&loaded, &order, &listener)?;
        closing!(
            "{}: the model of the last round; each round has a report of its own",
            loaded.value.run.out.join("model").display()
        );
        return Ok(exit_code(done.outcome));
    }
    let job = Job::new(loaded, &listener)?;
    let past_s = train::spent_s(&job.log());
    let mut trained = run_job(&job, &order, &listener)?;
    if let (Some(lesson), Outcome::Finished) = (lesson, trained.outcome) {
        let Lesson { rows, length, clock } = lesson;
        let length = match length {
            Length::Until(end, given_s) => Length::Until(clock.at(end.at_s() - past_s), given_s),
            steps => steps,
        };
        let order = Order { claim: Claim::default(), ..order.clone() };
        match teach(&job, rows, &length, &order, &listener)? {
            LessonOutcome::Reported(report) => trained.report = Some(*report),
            LessonOutcome::Nothing => {}
            LessonOutcome::Interrupted => return Ok(ExitCode::from(RESUME)),
        }
    }
    if let Some(report) = &trained.report {
        closing::print(&job, report);
    }
    if let Some(why) = trained.unsaved {
        bail!("the model is exported, and no checkpoint of the run could be saved: {why}");
    }
    Ok(exit_code(trained.outcome))
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Finished => ExitCode::SUCCESS,
        Outcome::Interrupted => ExitCode::from(RESUME),
    }
}
