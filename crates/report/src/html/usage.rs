//! Section on speed: rates over steps, and a breakdown of time.

use std::collections::BTreeMap;

use fathom_base::human;
use fathom_base::metrics::events::Step;

use super::table::{row, table};
use super::training::{series, small};
use crate::log::RunLog;
use crate::plots::Axis;
use crate::smooth::quantile;

/// Draws the section; empty if nothing was measured.
pub fn section(log: &RunLog) -> String {
    let mut html = String::new();
    if !log.steps.is_empty() {
        let tokens = vec![series(log, "tokens/s", "s1", |step| step.tokens_per_s)];
        let flops = vec![series(log, "TFLOP/s", "s2", |step| step.model_tflops)];
        html += &row(&[
            small(log, "Tokens per second", Axis::zero("tokens/s", " tokens/s"), tokens).draw(),
            small(log, "Causal-model TFLOP/s", Axis::zero("TFLOP/s", " TFLOP/s"), flops).draw(),
        ]);
        html += "<p class=\"note\">Causal-model: attention counted once under the causal mask, recompute not \
                 counted.</p>";
        if log.steps.iter().any(|step| step.spill_bytes > 0) {
            let waits = vec![series(log, "waiting for disk", "s2", |step| step.stall_s)];
            let moved = vec![series(log, "disk", "s4", |step| step.spill_bytes as f64 / step.step_s / 1e6)];
            html += &row(&[
                small(log, "Time of a step spent waiting for disk", Axis::zero("waiting [s]", " s"), waits)
                    .draw(),
                small(log, "To and from disk", Axis::zero("rate [MB/s]", " MB/s"), moved).draw(),
            ]);
        }
        html += &stage_table(log);
    }
    html
}

/// Table of rates, times and memory per stage.
fn stage_table(log: &RunLog) -> String {
    let mut stages: BTreeMap<u64, Vec<&Step>> = BTreeMap::new();
    log.steps.iter().for_each(|step| stages.entry(step.stage).or_default().push(step));
    let spilled = log.steps.iter().any(|step| step.spill_bytes > 0);
    let rows: Vec<Vec<String>> = stages
        .iter()
        .map(|(index, steps)| {
            let steps = || steps.iter().copied();
            let median = |f: fn(&Step) -> f64| quantile(steps().map(f), 0.5);
            let stage = log.stages.iter().find(|stage| stage.index == *index);
            let total: f64 = steps().map(|step| step.step_s).sum();
            let wait: f64 = steps().map(|step| step.data_wait_s).sum();
            let stall: f64 = steps().map(|step| step.stall_s).sum();
            let share = |part: f64| human::percent(if total > 0.0 { part / total } else { f64::NAN });
            let mut row = vec![
                stage.map_or(format!("stage {index}"), |stage| stage.name.clone()),
                steps().count().to_string(),
                human::grouped(median(|step| step.tokens_per_s).max(0.0) as u64),
                human::number(median(|step| step.model_tflops)),
                human::seconds(median(|step| step.step_s)),
                human::seconds(quantile(steps().map(|step| step.step_s), 0.95)),
                share(wait),
                human::bytes(steps().map(|step| step.pool_peak_bytes).max().unwrap_or(0)),
                human::bytes(steps().map(|step| step.rss_bytes).max().unwrap_or(0)),
            ];
            if spilled {
                row.insert(7, share(stall));
            }
            row
        })
        .collect();
    let mut head = vec![
        "stage",
        "steps",
        "tokens/s",
        "TFLOP/s",
        "step, median",
        "step, p95",
        "data wait",
        "pool peak",
        "resident, anonymous",
    ];
    if spilled {
        head.insert(7, "disk wait");
    }
    table(&head, &rows)
}
