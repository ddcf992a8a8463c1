//! `fathom diff`: two runs side by side.

use std::path::Path;

use anyhow::Result;
use fathom_report::RunLog;
use fathom_report::diff::compare;

/// Runs the verb.
pub fn run(left: &Path, right: &Path, json: bool) -> Result<()> {
    let diff = compare(&RunLog::read(left)?, &RunLog::read(right)?);
    match json {
        true => println!("{}", serde_json::to_string(&diff)?),
        false => println!("{diff}"),
    }
    Ok(())
}
