//! `fathom report`: the page of a run, from its log alone: also while the run goes on, or after it failed.

use std::path::Path;

use anyhow::{Result, bail};
use fathom_report::{RunLog, html, verdict};

use crate::{console, output};

/// Runs the verb.
pub fn run(run: &Path, out: Option<&Path>) -> Result<()> {
    if !run.join("metrics.jsonl").is_file() {
        bail!("{}: no run's folder (no metrics.jsonl)", run.display());
    }
    let page = out.map_or_else(|| run.join("report.html"), Path::to_path_buf);
    output::regular(&page)?;
    print(&write(run, &page)?);
    println!("{}", page.display());
    Ok(())
}

/// Writes the page of a run's folder as far as its log goes, and gives the log.
pub fn write(run: &Path, page: &Path) -> Result<RunLog> {
    let log = RunLog::read(run)?;
    html::write_page(&log, page)?;
    Ok(log)
}

/// The figures that a run is judged by, a line each.
pub fn print(log: &RunLog) {
    for verdict in verdict::verdicts(log) {
        let line = format!("  {verdict}");
        let (sign, style) =
            if verdict.passes == Some(false) { ("✗", console::BAD) } else { ("✓", console::GOOD) };
        println!("{}", line.replacen(sign, &console::painted(style, sign), 1));
    }
}
