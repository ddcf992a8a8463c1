//! `fathom train` and `fathom quickstart`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use fathom_base::ranks::Claim;
use fathom_base::recipe::{Layers, Recipe as Loaded};
use fathom_train::Outcome;
use fathom_train::recipe::{MachineKind, Recipe};

use super::plan;
use crate::crew::Crew;
use crate::library::{LIBRARY, layers, load, placed};
use crate::{args, console, device, gpu, pipeline, signals};

/// Exit code of a run that was asked to save and stop (EX_TEMPFAIL): start it again to go on.
pub const RESUME: u8 = 75;

/// From this time on a quickstart goes to 128K.
const LONG_MINUTES: f64 = 60.0;

/// The recipe that `fathom train` is given.
pub fn recipe(args: &args::Train) -> Result<Loaded<Recipe>> {
    let mut layers = layers(&args.recipe, &args.settings);
    if let Some(out) = &args.out {
        layers = layers.flag("--out", "run.out", &out.display().to_string());
    }
    if let Some(machine) = args.machine {
        layers = layers.flag("--machine", "machine.kind", device::kind(machine).name());
    }
    let chaos = args.chaos.map(|seed| seed.to_string());
    if let Some(seed) = &chaos {
        layers = layers.flag("--chaos", "machine.chaos", seed);
    }
    load(layers)
}

/// Runs `fathom train`.
pub fn train(args: &args::Train) -> Result<ExitCode> {
    let loaded = recipe(args)?;
    if args.dry_run {
        return dry_run(args, &loaded);
    }
    run(&loaded, &as_typed(), &args.rank.claim())
}

/// Refuses what a run would refuse of its recipe, then plans it.
fn dry_run(args: &args::Train, loaded: &Loaded<Recipe>) -> Result<ExitCode> {
    fathom_train::check_training(loaded)?;
    let machine = args.machine.map(|machine| format!("machine.kind={}", device::kind(machine).name()));
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
    // A fixed number of steps and no clock: two such runs are identical.
    let minutes = if args.steps.is_some() { "none".to_string() } else { args.minutes.to_string() };
    layers = layers.flag("--minutes", "run.minutes", &minutes);
    if !args.data.is_empty() {
        let paths: Vec<String> =
            args.data.iter().map(|path| format!("{:?}", path.display().to_string())).collect();
        layers = layers.flag("--data", "data.paths", &format!("[{}]", paths.join(", ")));
    }
    if let Some(steps) = args.steps {
        let stages = load(Layers::with_library(LIBRARY).recipe(recipe))?.value.stage.len();
        for stage in 0..stages {
            layers = layers.flag("--steps", &format!("stage.{stage}.steps"), &steps.to_string());
        }
    }
    let loaded = load(layers.sets(&args.settings))?;
    run(&loaded, &as_typed(), &Claim::default())
}

/// The command line, for the run's log.
fn as_typed() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("fathom {}", words.join(" "))
}

fn run(loaded: &Loaded<Recipe>, command: &str, flags: &Claim) -> Result<ExitCode> {
    fathom_train::check_training(loaded)?;
    if loaded.value.machine.kind == MachineKind::Meta {
        let message = "it has shapes and no data, and trains nothing; `fathom plan` is a run of it";
        return Err(loaded.refuse("machine.kind", message).into());
    }
    for row in loaded.rows().iter().filter(|row| row.source != "default") {
        console::detail(&format!("{} = {} ({})", row.path, row.value, row.source));
    }
    if let Some(why) = gpu::why_not(&loaded.value.machine) {
        console::note(&format!("machine: cpu ({why})"));
    }
    let stop = Arc::new(AtomicBool::new(false));
    signals::ask(&stop)?;
    let ended = Crew::assemble(flags, &loaded.value)
        .and_then(|crew| pipeline::run(loaded, command.trim(), &stop, &crew));
    match ended.map_err(|error| placed(loaded, error))? {
        Outcome::Finished => Ok(ExitCode::SUCCESS),
        Outcome::Interrupted => Ok(ExitCode::from(RESUME)),
    }
}
