//! Page of an audit log: decisions by rail, key and day, reasons, and latencies.

use std::collections::BTreeMap;

use fathom_guard::report::{AuditReport, Counts};
use fathom_report::html::{Heading, date, document, row, table};
use fathom_report::plots::{Axis, LineChart, Series};

/// Keys that are listed: those with the most lines.
const LISTED: usize = 50;

/// Page of an audit log.
pub fn log_page(title: &str, report: &AuditReport) -> String {
    let total = &report.total;
    let heading = Heading {
        brand: "guardrails".into(),
        title: title.into(),
        facts: vec![
            format!("{} judgements", total.all),
            format!("blocked {}", share(total.blocked, total.all)),
            format!("rewritten {}", share(total.rewritten, total.all)),
            format!("failed {}", share(total.failed, total.all)),
        ],
        source: "the audit log".into(),
    };
    let sections = [
        ("days", "Days", days(report)),
        ("rails", "Rails", groups("rail", &report.rails)),
        ("keys", "Keys", groups("key", &report.keys)),
        ("reasons", "Reasons", frequent("reason", &report.reasons)),
        ("kinds", "Findings", frequent("kind", &report.kinds)),
        ("degraded", "Degraded time", format!("<p>Rails failed for {:.0} s.</p>", report.degraded_s)),
    ];
    document(&heading, &sections)
}

fn share(part: u64, of: u64) -> String {
    format!("{:.2} %", 100.0 * part as f64 / of.max(1) as f64)
}

/// Names of the columns of [`cells`].
const COLUMNS: [&str; 7] =
    ["lines", "blocked", "rewritten", "flagged", "failed", "mean [us]", "slowest [us]"];

/// A line of a table about some judgements.
fn cells(name: String, counts: &Counts) -> Vec<String> {
    let share = |part| share(part, counts.all);
    vec![
        name,
        counts.all.to_string(),
        share(counts.blocked),
        share(counts.rewritten),
        share(counts.flagged),
        share(counts.failed),
        format!("{:.0}", counts.took_us as f64 / counts.all.max(1) as f64),
        counts.slowest_us.to_string(),
    ]
}

fn counted(name: &'static str, lines: &[Vec<String>]) -> String {
    let head: Vec<&str> = std::iter::once(name).chain(COLUMNS).collect();
    if lines.is_empty() { String::new() } else { table(&head, lines) }
}

/// Shares by day: a table, and a chart of several days.
fn days(report: &AuditReport) -> String {
    let date = |day: &u64| date(day * 86_400).chars().take(10).collect::<String>();
    let lines: Vec<Vec<String>> = report.days.iter().map(|(day, counts)| cells(date(day), counts)).collect();
    let first = report.days.keys().next().copied().unwrap_or(0);
    let series = |name: &str, class: &str, part: fn(&Counts) -> u64| {
        let share = |counts: &Counts| 100.0 * part(counts) as f64 / counts.all.max(1) as f64;
        let points = report.days.iter().map(|(day, counts)| ((day - first) as f64, share(counts))).collect();
        Series { name: name.into(), class: class.into(), points }
    };
    let drift = LineChart {
        title: "Decisions by day".into(),
        note: format!("Days since {}.", date(&first)),
        size: (1060.0, 320.0),
        x: Axis::linear("day", ""),
        y: Axis::zero("share [%]", " %"),
        series: vec![
            series("blocked", "s1", |counts| counts.blocked),
            series("rewritten", "s2", |counts| counts.rewritten),
            series("failed", "s3", |counts| counts.failed),
        ],
        marks: Vec::new(),
        level: None,
    };
    let chart = if report.days.len() > 1 { row(&[drift.draw()]) } else { String::new() };
    chart + &counted("day", &lines)
}

/// Judgements by rail or key, those with the most lines first.
fn groups(name: &'static str, all: &BTreeMap<String, Counts>) -> String {
    let mut named: Vec<(&String, &Counts)> = all.iter().filter(|(name, _)| !name.is_empty()).collect();
    named.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.all));
    let lines: Vec<Vec<String>> =
        named.into_iter().take(LISTED).map(|(name, counts)| cells(name.clone(), counts)).collect();
    counted(name, &lines)
}

/// Numbers by reason or kind, the most frequent first.
fn frequent(name: &str, all: &BTreeMap<String, u64>) -> String {
    let mut sorted: Vec<(&String, &u64)> = all.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let lines: Vec<Vec<String>> =
        sorted.into_iter().map(|(name, count)| vec![name.clone(), count.to_string()]).collect();
    if lines.is_empty() { String::new() } else { table(&[name, "number"], &lines) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_shows_rails_days_and_reasons_and_escapes_names() {
        let counts = Counts { all: 4, blocked: 1, took_us: 400, slowest_us: 300, ..Counts::default() };
        let report = AuditReport {
            total: counts.clone(),
            rails: [("<zz>".to_string(), counts.clone()), (String::new(), counts.clone())].into(),
            days: [(20_000, counts.clone()), (20_001, counts)].into(),
            reasons: [("pattern".to_string(), 1)].into(),
            ..AuditReport::default()
        };
        let page = log_page("bank", &report);
        for part in ["2024-10-04", "25.00 %", "&lt;zz&gt;", "pattern", "Decisions by day", "<svg"] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<zz>"));
    }
}
