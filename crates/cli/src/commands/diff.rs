//! `fathom diff`: two runs side by side.

use std::path::{Path, PathBuf};

use anyhow::Result;
use fathom_report::RunLog;
use fathom_report::diff::compare;
use fathom_train::compare_checkpoints;

/// Runs the verb.
pub fn run(left: &Path, right: &Path, json: bool) -> Result<()> {
    let mut diff = compare(&RunLog::read(left)?, &RunLog::read(right)?);
    if diff.names.0 == diff.names.1 {
        diff.names = (left.display().to_string(), right.display().to_string());
    }
    diff.checkpoint = compare_checkpoints(&checkpoints(left), &checkpoints(right))?;
    if json {
        outln!("{}", serde_json::to_string(&diff)?)
    } else {
        outln!("{diff}")
    }
    Ok(())
}

/// Checkpoints in a run's folder, or next to its log.
fn checkpoints(run: &Path) -> PathBuf {
    if run.is_dir() { run.join("checkpoints") } else { run.with_file_name("checkpoints") }
}
