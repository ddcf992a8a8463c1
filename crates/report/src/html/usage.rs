//! The section on speed and memory: rates over steps, where time goes, memory along one step, the plan.

use fathom_base::human;
use fathom_base::metrics::events::MemoryTimeline;

use super::training::{series, small};
use super::{row, table};
use crate::log::RunLog;
use crate::plots::{Axis, Layer, StackedArea, category_class};
use crate::smooth::quantile;

/// The section; empty when nothing was measured.
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
        html += &stage_table(log);
    }
    for timeline in log.timelines.iter().filter(|t| !t.labels.is_empty()) {
        html += &memory(timeline).draw().html();
    }
    html + &plan_table(log)
}

/// Rates, times and memory per stage.
fn stage_table(log: &RunLog) -> String {
    let mut indices: Vec<u64> = log.steps.iter().map(|step| step.stage).collect();
    indices.dedup();
    let rows: Vec<Vec<String>> = indices
        .iter()
        .map(|index| {
            let steps = || log.steps.iter().filter(|step| step.stage == *index);
            let median = |f: fn(&fathom_base::metrics::events::Step) -> f64| quantile(steps().map(f), 0.5);
            let stage = log.stages.iter().find(|stage| stage.index == *index);
            let total: f64 = steps().map(|step| step.step_s).sum();
            let wait: f64 = steps().map(|step| step.data_wait_s).sum();
            vec![
                stage.map_or(format!("stage {index}"), |stage| stage.name.clone()),
                steps().count().to_string(),
                human::grouped(median(|step| step.tokens_per_s).max(0.0) as u64),
                human::number(median(|step| step.model_tflops)),
                human::seconds(median(|step| step.step_s)),
                human::seconds(quantile(steps().map(|step| step.step_s), 0.95)),
                human::percent(if total > 0.0 { wait / total } else { f64::NAN }),
                human::bytes(steps().map(|step| step.pool_peak_bytes).max().unwrap_or(0)),
                human::bytes(steps().map(|step| step.rss_bytes).max().unwrap_or(0)),
            ]
        })
        .collect();
    let head = [
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
    table(&head, &rows)
}

fn memory(timeline: &MemoryTimeline) -> StackedArea {
    let n = timeline.labels.len();
    let peak = (0..n)
        .map(|i| timeline.live_bytes.iter().map(|line| line.get(i).copied().unwrap_or(0)).sum::<u64>())
        .max()
        .unwrap_or(0)
        .max(timeline.planned_peak_bytes);
    let (word, unit) = match peak {
        p if p >= 2 << 30 => ("GiB", (1u64 << 30) as f64),
        p if p >= 2 << 20 => ("MiB", (1u64 << 20) as f64),
        _ => ("KiB", 1024.0),
    };
    let layers = timeline.categories.iter().zip(&timeline.live_bytes).map(|(name, bytes)| Layer {
        name: name.clone(),
        class: category_class(name).into(),
        values: (0..n).map(|i| bytes.get(i).copied().unwrap_or(0) as f64 / unit).collect(),
    });
    let stage = if timeline.stage.is_empty() { String::new() } else { format!(", {}", timeline.stage) };
    StackedArea {
        title: format!("Memory over one step{stage}"),
        note: format!("Live bytes of the pool by category along step {}, in program order.", timeline.step),
        size: (1060.0, 360.0),
        x_label: "point in the step [allocations and releases]".into(),
        y: Axis::zero(&format!("live memory [{word}]"), &format!(" {word}")),
        labels: timeline.labels.clone(),
        layers: layers.filter(|layer| layer.values.iter().any(|v| *v > 0.0)).collect(),
        line: (timeline.planned_peak_bytes > 0)
            .then(|| (timeline.planned_peak_bytes as f64 / unit, "planned peak".to_string())),
    }
}

/// What the plan foretold, by category, stages side by side.
fn plan_table(log: &RunLog) -> String {
    if log.plans.is_empty() {
        return String::new();
    }
    let mut names: Vec<&String> = log.plans.iter().flat_map(|plan| plan.by_category.keys()).collect();
    names.sort();
    names.dedup();
    let line = |name: &str, of: &dyn Fn(&fathom_base::metrics::events::Plan) -> String| {
        let mut row = vec![name.to_string()];
        row.extend(log.plans.iter().map(of));
        row
    };
    let mut rows: Vec<Vec<String>> = names
        .iter()
        .map(|name| line(name, &|plan| human::bytes(plan.by_category.get(*name).copied().unwrap_or(0))))
        .collect();
    rows.push(line("peak, live", &|plan| human::bytes(plan.peak_live_bytes)));
    rows.push(line("peak, reserved", &|plan| human::bytes(plan.peak_reserved_bytes)));
    rows.push(line("FLOPs of a step", &|plan| human::si(plan.step_flops)));
    let mut head = vec!["plan"];
    head.extend(log.plans.iter().map(|plan| plan.stage.as_str()));
    table(&head, &rows)
}
