//! `fathom guard`: guardrails without a model's server. One file a verb.

mod audit;
mod calibrate;
mod check;
mod eval;
mod files;
mod from;
mod report;
mod serve;

use anyhow::Result;

use crate::args::Guard;
use crate::exit::ExitCode;

/// Runs a verb.
pub fn run(what: &Guard) -> Result<ExitCode> {
    match what {
        Guard::Check(args) => return check::run(args),
        Guard::Serve(args) => serve::run(args)?,
        Guard::Eval(args) => eval::run(args)?,
        Guard::Calibrate(args) => calibrate::run(args)?,
        Guard::Audit(args) => audit::run(args)?,
        Guard::Report { config, json, page } => report::run(config, *json, page.as_deref())?,
        Guard::From { folder, out } => from::run(folder, out.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}
