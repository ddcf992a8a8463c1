//! `fathom guard report`: what an audit log says.

use std::path::Path;

use anyhow::Result;
use fathom_app::guardrails;
use fathom_base::human;

use super::files;

/// Runs the verb.
pub fn run(config: &Path, json: bool, page: Option<&Path>) -> Result<()> {
    files::check(&[page])?;
    let report = guardrails::audited(config)?;
    files::write(page, || guardrails::log_page(&config.display().to_string(), &report))?;
    if json {
        outln!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let total = &report.total;
    outln!("{}, the chain is whole", human::counted(total.all, "line"));
    let share = |part: u64| format!("{part} ({:.2} %)", 100.0 * part as f64 / total.all.max(1) as f64);
    for (what, part) in [
        ("allowed", total.allowed),
        ("flagged", total.flagged),
        ("rewritten", total.rewritten),
        ("blocked", total.blocked),
        ("failed", total.failed),
    ] {
        outln!("  {what:<10} {}", share(part));
    }
    if report.degraded_s > 0.0 {
        outln!("  rails failed for {:.0} s", report.degraded_s);
    }
    for (title, groups) in [("rail", &report.rails), ("key", &report.keys)] {
        for (name, counts) in groups.iter().filter(|(name, _)| !name.is_empty()) {
            outln!(
                "{title} {name}: {} lines, {} blocked, {} rewritten, {} failed, {:.0} us on average, {} us at most",
                counts.all,
                counts.blocked,
                counts.rewritten,
                counts.failed,
                counts.took_us as f64 / counts.all.max(1) as f64,
                counts.slowest_us
            );
        }
    }
    for (title, counts) in [("reason", &report.reasons), ("found", &report.kinds)] {
        let mut counts: Vec<_> = counts.iter().collect();
        counts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
        counts.iter().for_each(|(name, count)| outln!("{title} {name}: {count}"));
    }
    Ok(())
}
