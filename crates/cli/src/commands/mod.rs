//! One file a verb.

mod bench;
mod check;
mod cluster;
pub(crate) mod convert;
pub mod curate;
mod diff;
mod dist;
mod doctor;
mod eval;
mod generate;
mod inspect;
mod launch;
pub(crate) mod plan;
mod plan_mesh;
mod plan_page;
mod plan_ranks;
mod plan_trace;
mod quality;
mod recipes;
pub(crate) mod report;
mod shell;
mod stages;
mod supervise;
mod train;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::{Args, Verb};

/// What may be done where a verb finds no memory.
pub fn memory_advice(verb: &Verb) -> &'static str {
    match verb {
        Verb::Quickstart(_) | Verb::Train(_) | Verb::Plan(_) => {
            "`fathom plan` says what a run needs, and machine.memory_bytes what it may use; `fathom doctor` names a limit of this \
             process (ulimit -v) or of its control group"
        }
        Verb::Generate(_) => {
            "a smaller --context takes less, and so does --precision bf16; `fathom doctor` names a limit of this process \
             (ulimit -v) or of its control group"
        }
        Verb::Eval(_) => {
            "fewer --tokens take less; `fathom doctor` names a limit of this process (ulimit -v) or of its control group"
        }
        _ => "`fathom doctor` names a limit of this process (ulimit -v) or of its control group",
    }
}

/// Runs a verb.
pub fn run(args: Args) -> Result<ExitCode> {
    match args.verb {
        Verb::Quickstart(args) => return train::quickstart(&args),
        Verb::Train(args) => return train::train(&args),
        Verb::Curate(args) => return curate::run(&args),
        Verb::Supervise(args) => return supervise::run(&args),
        Verb::Launch { on } => return launch::run(&on),
        Verb::Recipes { action } => recipes::run(&action)?,
        Verb::Plan(args) => plan::run(&args)?,
        Verb::Eval(args) => eval::run(&args)?,
        Verb::Generate(args) => generate::run(&args)?,
        Verb::Bench { what } => bench::run(&what)?,
        Verb::Export(args) => convert::export(&args)?,
        Verb::Import(args) => convert::import(&args)?,
        Verb::Inspect { what } => inspect::run(&what)?,
        Verb::Report { run, out } => report::run(&run, out.as_deref())?,
        Verb::Diff { left, right, json } => diff::run(&left, &right, json)?,
        Verb::Completions { shell } => shell::completions(shell)?,
        Verb::Man { verb, out } => shell::man(&verb, out.as_deref())?,
        Verb::Doctor(args) if args.dist => dist::run(&args)?,
        Verb::Doctor(args) => doctor::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
