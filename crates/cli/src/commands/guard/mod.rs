//! `fathom guard`: measurements of guardrails, and NeMo's as ours. One file a verb.

mod audit;
mod calibrate;
mod eval;
mod from;

use std::path::Path;

use anyhow::{Context, Result};
use fathom_app::output::regular;

use crate::args::Guard;

/// Runs a verb.
pub fn run(what: &Guard) -> Result<()> {
    match what {
        Guard::Eval(args) => eval::run(args),
        Guard::Calibrate(args) => calibrate::run(args),
        Guard::Audit(args) => audit::run(args),
        Guard::From { folder, out } => from::run(folder, out.as_deref()),
    }
}

/// Refuses files that are not to be replaced, before any work is done.
fn check(files: &[Option<&Path>]) -> Result<()> {
    files.iter().flatten().try_for_each(|file| Ok(regular(file)?))
}

/// Writes a file, if one is asked for.
fn write(file: Option<&Path>, text: impl FnOnce() -> String) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    fathom_base::files::write(file, text().as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}
