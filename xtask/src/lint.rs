//! clippy over the workspace, and the record of the sources that it last passed: a whole pass is minutes of CI.

use std::process::Command;

use crate::record::CheckRecord;

const RECORD: CheckRecord = CheckRecord {
    file: "xtask/lint.toml",
    command: "lint",
    sources: &["crates", "xtask/src", "xtask/Cargo.toml", "Cargo.toml", "Cargo.lock", "clippy.toml"],
    endings: &["rs", "toml", "lock"],
};

/// Unless these very sources passed before, lints them ([`run`]).
///
/// # Errors
/// Those of [`run`].
pub fn run_if_changed() -> Result<Vec<String>, String> {
    RECORD.unless_passed(run)
}

/// Lints every target of the workspace, and records the sources if nothing is found.
///
/// # Errors
/// A message when cargo cannot be run, or the record not written.
pub fn run() -> Result<Vec<String>, String> {
    let args = ["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];
    let status = Command::new("cargo").args(args).status();
    let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
    if !status.success() {
        return Ok(vec![format!("failed: cargo {}", args.join(" "))]);
    }
    RECORD.write()?;
    Ok(Vec::new())
}
