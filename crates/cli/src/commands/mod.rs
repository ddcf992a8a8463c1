//! The verbs, one file each.

mod bench;
mod board;
mod chat;
mod compile;
mod convert;
#[cfg(feature = "curate")]
mod curate;
#[cfg(not(feature = "curate"))]
#[path = "uncurated.rs"]
mod curate;
mod data;
mod diff;
mod dist;
mod doctor;
mod eval;
mod generate;
mod guard;
mod inspect;
mod judged;
mod launch;
mod plan;
mod plan_mesh;
mod plan_ranks;
mod prefixes;
mod prune;
mod recipes;
mod report;
mod retrieval;
mod runs;
mod scale;
mod score;
mod serve;
mod shell;
mod supervise;
mod tasks;
mod train;
mod watch;

use anyhow::Result;

pub use report::print as print_verdicts;

use crate::args::{Args, Verb};
use crate::exit::ExitCode;

/// Advice for a verb that runs out of memory.
pub fn memory_advice(verb: &Verb) -> &'static str {
    match verb {
        Verb::Quickstart(_) | Verb::Train(_) | Verb::Plan(_) => {
            "`fathom plan` says what a run needs, and machine.memory_bytes what it may use; `fathom doctor` names a limit of this \
             process (ulimit -v) or of its control group"
        }
        Verb::Generate(_) | Verb::Chat(_) => {
            "a smaller --context takes less, and so does --precision bf16; `fathom doctor` names a limit of this process \
             (ulimit -v) or of its control group"
        }
        Verb::Serve(_) => {
            "a smaller serve.context_tokens takes less, and so do --kv int8 and --precision bf16; `fathom doctor` names a limit of this \
             process (ulimit -v) or of its control group"
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
        Verb::Scale(args) => return scale::run(&args),
        Verb::Supervise(args) => return supervise::run(&args),
        Verb::Launch { on } => return launch::run(&on),
        Verb::Recipes { action } => recipes::run(&action)?,
        Verb::Plan(args) => plan::run(&args)?,
        Verb::Eval(args) => eval::run(&args)?,
        Verb::Score(args) => score::run(&args)?,
        Verb::Generate(args) => generate::run(&args)?,
        Verb::Chat(args) => chat::run(&args)?,
        Verb::Serve(args) => serve::run(&args)?,
        Verb::Index(args) => retrieval::index(&args)?,
        Verb::Search(args) => retrieval::search(&args)?,
        Verb::CompileStructure { seconds } => return compile::run(seconds),
        Verb::Guard { what } => return guard::run(&what),
        Verb::Prefixes(args) => prefixes::run(&args)?,
        Verb::Data { action } => return data::run(&action),
        Verb::Bench { what } => bench::run(&what)?,
        Verb::Export(args) => convert::export(&args)?,
        Verb::Prune(args) => prune::run(&args)?,
        Verb::Import(args) => convert::import(&args)?,
        Verb::Quantize(args) => convert::quantize(&args)?,
        Verb::Inspect { what } => inspect::run(&what)?,
        Verb::Report { run, out } => report::run(&run, out.as_deref())?,
        Verb::Diff { left, right, json } => diff::run(&left, &right, json)?,
        Verb::Runs(args) => runs::run(&args)?,
        Verb::Board(args) => board::run(&args)?,
        Verb::Watch(args) => watch::run(&args)?,
        Verb::Completions { shell } => shell::completions(shell)?,
        Verb::Man { verb, out } => shell::man(&verb, out.as_deref())?,
        Verb::Doctor(args) if args.dist => dist::run(&args)?,
        Verb::Doctor(args) => doctor::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
