//! `fathom report`: the page of a run, from its log only, also while it runs or after it failed.

use std::path::Path;

use anyhow::Result;
use fathom_app::report::report;
use fathom_report::{RunLog, objective};

use crate::console;

/// Runs the verb.
pub fn run(run: &Path, out: Option<&Path>) -> Result<()> {
    let page = out.map_or_else(|| run.join("report.html"), Path::to_path_buf);
    print(&report(run, &page)?);
    outln!("{}", page.display());
    Ok(())
}

/// Figures that judge a run, one per line.
pub fn print(log: &RunLog) {
    for verdict in objective::verdicts(log) {
        let line = format!("  {verdict}");
        let (sign, style) =
            if verdict.passes == Some(false) { ("✗", console::BAD) } else { ("✓", console::GOOD) };
        outln!("{}", line.replacen(sign, &console::painted(style, sign), 1));
    }
}
