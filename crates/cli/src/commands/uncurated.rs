//! Replaces `fathom curate` in a build without curation.

use anyhow::{Result, bail};

use crate::args::Curate;
use crate::exit::ExitCode;

/// Refuses the verb.
pub fn run(_: &Curate) -> Result<ExitCode> {
    refused()
}

/// Refuses to resolve a curation's recipe.
pub fn show(_: &str, _: &[String]) -> Result<()> {
    refused()
}

/// Refuses to give the keys of curations.
pub fn schema() -> Result<serde_json::Value> {
    refused()
}

fn refused<T>() -> Result<T> {
    bail!(
        "this fathom was built without curation; build one with `cargo build --release -p fathom-cli` (cargo feature `curate`)"
    )
}
