//! Remarks that a run prints about its input at the end: facts that contradict likely assumptions.

use std::collections::BTreeSet;

use super::plan::Pipeline;
use super::stats::Stats;
use super::tally::reason_name;
use super::units;
use crate::counters::Damage;

impl Pipeline {
    /// One line each for the first losses, files without a reader, and columns that occur nowhere.
    pub(super) fn remarks(&self, stats: &Stats) -> Vec<String> {
        let has = |column: &&String| {
            stats.stages.iter().any(|stage| {
                stage.tally.groups.get(units::COLUMNS).is_some_and(|group| group.contains_key(*column))
            })
        };
        let mut remarks = first_losses(stats);
        if !self.unread.unread.is_empty() {
            let files = self.unread.extensions();
            remarks.push(format!("files without a reader: {files}; `input.format` reads files of any name"));
        }
        let missing: Vec<&str> = self.asked.iter().filter(|c| !has(c)).map(String::as_str).collect();
        if !missing.is_empty() {
            remarks.push(format!("no document has a column `{}` (input.columns)", missing.join("`, `")));
        }
        remarks
    }
}

/// The first damaged record or file of each kind, so that a problem is visible without consulting the statistics.
fn first_losses(stats: &Stats) -> Vec<String> {
    let Some(read) = stats.stages.first() else { return Vec::new() };
    let mut reported = BTreeSet::new();
    let first = read.tally.damage.iter().filter(|damage| reported.insert(damage.reason));
    let line = |damage: &Damage| {
        let more =
            read.tally.dropped.get(&reason_name(damage.reason)).map_or(0, |d| d.documents.saturating_sub(1));
        let more = if more > 0 { format!(" (and {more} more such)") } else { String::new() };
        format!("lost: {damage}{more}")
    };
    first.map(line).collect()
}
