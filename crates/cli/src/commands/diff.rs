//! `fathom diff`: two runs side by side.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use fathom_base::toml::{Table, Value};
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
    diff.impure = [left, right].into_iter().flat_map(impure).collect::<BTreeSet<_>>().into_iter().collect();
    if json {
        outln!("{}", serde_json::to_string(&diff)?)
    } else {
        outln!("{diff}")
    }
    Ok(())
}

/// Checkpoints in a run's folder, or next to its log.
fn checkpoints(run: &Path) -> PathBuf {
    next_to(run, "checkpoints")
}

fn next_to(run: &Path, name: &str) -> PathBuf {
    if run.is_dir() { run.join(name) } else { run.with_file_name(name) }
}

/// Names of a run's rewards that its program has declared impure.
fn impure(run: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(next_to(run, "rewards.toml")).unwrap_or_default();
    let file: Table = text.parse().unwrap_or_default();
    let rewards = file.get("reward").and_then(Value::as_array).into_iter().flatten();
    let impure = rewards.filter(|reward| reward.get("pure").and_then(Value::as_bool) == Some(false));
    impure.filter_map(|reward| Some(reward.get("name")?.as_str()?.to_string())).collect()
}
