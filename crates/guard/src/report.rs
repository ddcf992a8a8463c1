//! Summary of an audit log as plain data: rates by rail, day and key, the most frequent reasons, the slowest rails, and
//! the time in which rails failed.

use std::collections::BTreeMap;
use std::path::Path;

use fathom_base::Result;
use serde::Serialize;

use crate::audit::{AuditRecord, read};
use crate::verdict::Decision;

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// Numbers of verdicts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Lines of the log.
    pub all: u64,
    /// Texts or verdicts that allow.
    pub allowed: u64,
    /// Verdicts that flag.
    pub flagged: u64,
    /// Verdicts that rewrite.
    pub rewritten: u64,
    /// Verdicts that block.
    pub blocked: u64,
    /// Verdicts of failed rails.
    pub failed: u64,
    /// Sum of latencies in microseconds.
    pub took_us: u64,
    /// Longest latency in microseconds.
    pub slowest_us: u64,
}

impl Counts {
    fn add(&mut self, record: &AuditRecord) {
        self.all += 1;
        match record.decision {
            Decision::Allow => self.allowed += 1,
            Decision::Flag => self.flagged += 1,
            Decision::Rewrite => self.rewritten += 1,
            Decision::Block => self.blocked += 1,
        }
        self.failed += u64::from(record.failed);
        self.took_us += record.took_us;
        self.slowest_us = self.slowest_us.max(record.took_us);
    }
}

/// Summary of a log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AuditReport {
    /// All lines.
    pub total: Counts,
    /// By rail; texts that all rails allowed are under an empty name.
    pub rails: BTreeMap<String, Counts>,
    /// By day, counted from 1970.
    pub days: BTreeMap<u64, Counts>,
    /// By key.
    pub keys: BTreeMap<String, Counts>,
    /// Number of verdicts by reason, of all but plain allowances.
    pub reasons: BTreeMap<String, u64>,
    /// Number of findings by kind.
    pub kinds: BTreeMap<String, u64>,
    /// Seconds between lines that report failed rails.
    pub degraded_s: f64,
    /// Time of the first line, in seconds since 1970.
    pub first_s: f64,
    /// Time of the last line.
    pub last_s: f64,
}

/// Summarises the log in a folder.
///
/// # Errors
/// A file that cannot be read, or a line that is none of a log.
pub fn report(folder: &Path) -> Result<AuditReport> {
    let mut report = AuditReport::default();
    let mut before: Option<(f64, bool)> = None;
    read(folder, |record| {
        report.total.add(&record);
        report.rails.entry(record.rail.clone().unwrap_or_default()).or_default().add(&record);
        report.days.entry((record.time_s / DAY_S) as u64).or_default().add(&record);
        report.keys.entry(record.key.clone().unwrap_or_default()).or_default().add(&record);
        if record.decision != Decision::Allow || record.failed {
            let reason = serde_json::to_value(record.reason).ok();
            let reason = reason.and_then(|it| it.as_str().map(str::to_string)).unwrap_or_default();
            *report.reasons.entry(reason).or_default() += 1;
        }
        record.kinds.iter().for_each(|(kind, n)| *report.kinds.entry(kind.clone()).or_default() += n);
        let is_degraded = !record.degraded.is_empty();
        match before {
            None => report.first_s = record.time_s,
            Some((at, true)) => report.degraded_s += (record.time_s - at).max(0.0),
            Some(_) => {}
        }
        before = Some((record.time_s, is_degraded));
        report.last_s = record.time_s;
    })?;
    Ok(report)
}
