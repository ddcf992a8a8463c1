//! `fathom guard`: guardrails without a model's server. One file a verb.

mod audit;
mod calibrate;
mod check;
mod eval;
mod from;
mod report;
mod serve;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use fathom_app::output::regular;

use crate::args::Guard;

/// Runs a verb.
pub fn run(what: &Guard) -> Result<ExitCode> {
    match what {
        Guard::Check(args) => return check::run(args),
        Guard::Serve(args) => serve::run(args)?,
        Guard::Eval(args) => eval::run(args)?,
        Guard::Calibrate(args) => calibrate::run(args)?,
        Guard::Audit(args) => audit::run(args)?,
        Guard::Report { config, json } => report::run(config, *json)?,
        Guard::From { folder, out } => from::run(folder, out.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses files that are not to be replaced, before any work is done.
fn regular_files(files: &[Option<&Path>]) -> Result<()> {
    files.iter().flatten().try_for_each(|file| Ok(regular(file)?))
}

/// Writes a file, if one is asked for.
fn write(file: Option<&Path>, text: impl FnOnce() -> String) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    fathom_base::files::write(file, text().as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}
