//! Section on memory: use along one step, places of activations, and needs of other lengths and other placements.

use fathom_base::metrics::events::{LengthLine, LengthPoint, Lengths, MemoryTimeline, Plan};
use fathom_base::{human, tokens};

use super::placement;
use super::table::{row, table};
use crate::log::RunLog;
use crate::plots::{Axis, Figure, Layer, LineChart, Mark, Series, StackedArea, category_class};

/// Draws the section; empty if nothing was planned or measured.
pub fn section(log: &RunLog) -> String {
    let mut html = String::new();
    for stage in stages(log) {
        let measured = log.timelines.iter().find(|t| t.stage == stage && !t.labels.is_empty());
        let planned = log.planned.iter().find(|t| t.stage == stage && !t.labels.is_empty());
        html += &match (measured, planned) {
            (Some(measured), planned) => along_step(measured, planned).draw().html(),
            (None, Some(planned)) => {
                let chart = along_step(planned, None);
                let title = chart.title.replace("Memory", "Planned memory");
                let note =
                    format!("Live bytes of the pool by category, in program order.{}", batches(planned));
                StackedArea { title, note, line: None, ..chart }.draw().html()
            }
            (None, None) => String::new(),
        };
        html += &measured.or(planned).map_or(String::new(), at_peak);
        let placed = log.placements.iter().find(|placement| placement.stage == stage);
        html += &placed.map_or(String::new(), |placed| placement::map(placed).draw().html());
    }
    html += &plan_table(log);
    if log.num_ranks() > 1 && !html.is_empty() {
        html.insert_str(
            0,
            "<p class=\"note\">Of the first rank, which has its part of the model and of the data.</p>\n",
        );
    }
    html + &log.lengths.iter().map(lengths).collect::<String>()
}

/// Names of the stages with a plan, timeline or placement, in the order of the plans.
fn stages(log: &RunLog) -> Vec<&str> {
    let plans = log.plans.iter().map(|plan| plan.stage.as_str());
    let timelines = log.timelines.iter().chain(&log.planned).map(|timeline| timeline.stage.as_str());
    let placements = log.placements.iter().map(|placement| placement.stage.as_str());
    let mut names: Vec<&str> = Vec::new();
    for name in plans.chain(timelines).chain(placements) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Categories whose size changes along a step.
const COME_AND_GO: [&str; 5] = ["data", "activations", "workspace", "snapshot", "comm"];

/// Sum that saturates at `u64::MAX`, because a damaged log may contain any numbers.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// Sum over all categories at each point.
fn totals(timeline: &MemoryTimeline) -> Vec<u64> {
    let at = |i: usize| sum(timeline.live_bytes.iter().map(|line| line.get(i).copied().unwrap_or(0)));
    (0..timeline.labels.len()).map(at).collect()
}

fn along_step(timeline: &MemoryTimeline, planned: Option<&MemoryTimeline>) -> StackedArea {
    let (measured, foretold) = (totals(timeline), planned.map(totals));
    let greatest = measured.iter().chain(foretold.iter().flatten()).copied().max().unwrap_or(0);
    let (word, unit) = match greatest.max(timeline.planned_peak_bytes) {
        p if p >= 1 << 40 => ("TiB", (1u64 << 40) as f64),
        p if p >= 2 << 30 => ("GiB", (1u64 << 30) as f64),
        p if p >= 2 << 20 => ("MiB", (1u64 << 20) as f64),
        _ => ("KiB", 1024.0),
    };
    let n = measured.len();
    // Categories of constant size are drawn below those that change.
    let mut order: Vec<usize> = (0..timeline.categories.len().min(timeline.live_bytes.len())).collect();
    order.sort_by_key(|i| u8::from(COME_AND_GO.contains(&timeline.categories[*i].as_str())));
    let lines = order.iter().map(|i| (&timeline.categories[*i], &timeline.live_bytes[*i]));
    let layers = lines.map(|(name, bytes)| Layer {
        name: name.clone(),
        class: category_class(name).into(),
        values: (0..n).map(|i| bytes.get(i).copied().unwrap_or(0) as f64 / unit).collect(),
    });
    let line = match &foretold {
        Some(foretold) => Some((foretold.iter().map(|b| *b as f64 / unit).collect(), "planned".to_string())),
        None => (timeline.planned_peak_bytes > 0)
            .then(|| (vec![timeline.planned_peak_bytes as f64 / unit], "planned peak".to_string())),
    };
    let stage = if timeline.stage.is_empty() { String::new() } else { format!(", {}", timeline.stage) };
    let agreement = foretold.map_or(String::new(), |foretold| agreement(&measured, &foretold));
    StackedArea {
        title: format!("Memory over one step{stage}"),
        note: format!(
            "Live bytes of the pool by category along step {}, in program order.{}{agreement}",
            timeline.step,
            batches(timeline)
        ),
        size: (1060.0, 360.0),
        x_label: "point in the step [allocations and releases]".into(),
        y: Axis::zero(&format!("live memory [{word}]"), &format!(" {word}")),
        labels: timeline.labels.clone(),
        layers: layers.filter(|layer| layer.values.iter().any(|v| *v > 0.0)).collect(),
        line,
        phases: timeline.phases.iter().map(|phase| (phase.from as usize, phase.name.clone())).collect(),
    }
}

/// Number of rows in the table of values live at the peak.
const AT_PEAK: usize = 12;

/// Table of the values live at the peak, by name; empty if the log has none.
fn at_peak(timeline: &MemoryTimeline) -> String {
    let values = &timeline.at_peak;
    if values.is_empty() {
        return String::new();
    }
    let all = sum(values.iter().map(|value| value.bytes));
    let share = |bytes: u64| human::percent(bytes as f64 / all.max(1) as f64);
    let mut rows: Vec<Vec<String>> = values
        .iter()
        .take(AT_PEAK)
        .map(|value| {
            let name =
                if value.gradient { format!("gradient of {}", value.name) } else { value.name.clone() };
            let layers = value.layers.to_string();
            vec![name, value.category.clone(), layers, human::bytes(value.bytes), share(value.bytes)]
        })
        .collect();
    let rest = &values[values.len().min(AT_PEAK)..];
    if !rest.is_empty() {
        let bytes = sum(rest.iter().map(|value| value.bytes));
        let name = format!("{} more", rest.len());
        rows.push(vec![name, String::new(), "-".into(), human::bytes(bytes), share(bytes)]);
    }
    let summary = format!("What the step itself holds at its peak: {}", human::bytes(all));
    let head = ["value", "category", "layers", "bytes", "share"];
    format!("<details><summary>{summary}</summary>{}</details>", table(&head, &rows))
}

/// Names the micro-batches shown, if they are not all.
fn batches(timeline: &MemoryTimeline) -> String {
    match timeline.micro_batches {
        0..=2 => String::new(),
        count => format!(" The first two of {count} micro batches; the others are like the second."),
    }
}

/// Describes the difference between plan and measurement.
fn agreement(measured: &[u64], planned: &[u64]) -> String {
    if measured == planned {
        return " Plan and measurement agree to the byte at every point.".into();
    }
    let peak = |line: &[u64]| line.iter().copied().max().unwrap_or(0);
    let (measured_peak, planned_peak) = (peak(measured), peak(planned));
    if measured_peak == planned_peak {
        " The planned peak is the measured one to the byte.".into()
    } else {
        format!(" Measured peak {}, planned {}.", human::bytes(measured_peak), human::bytes(planned_peak))
    }
}

/// Table of the planned memory by category, with stages side by side.
fn plan_table(log: &RunLog) -> String {
    if log.plans.is_empty() {
        return String::new();
    }
    let mut names: Vec<&String> = log.plans.iter().flat_map(|plan| plan.by_category.keys()).collect();
    names.sort();
    names.dedup();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut line = |name: &str, of: &dyn Fn(&Plan) -> String| {
        let cells: Vec<String> = log.plans.iter().map(of).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            rows.push(std::iter::once(name.to_string()).chain(cells).collect());
        }
    };
    let some = |bytes: u64| if bytes > 0 { human::bytes(bytes) } else { String::new() };
    let flops = |flops: f64| if flops > 0.0 { human::si(flops) } else { String::new() };
    for name in names {
        line(name, &|plan| some(plan.by_category.get(name).copied().unwrap_or(0)));
    }
    line("peak, live", &|plan| human::bytes(plan.peak_live_bytes));
    line("peak, reserved", &|plan| human::bytes(plan.peak_reserved_bytes));
    line("operation at the peak", &|plan| plan.peak_op.clone());
    line("most on disk", &|plan| some(plan.disk_peak_bytes));
    line("to and from disk in a step", &|plan| some(plan.disk_bytes));
    line("FLOPs of a step", &|plan| flops(plan.step_flops));
    line("FLOPs that run, recompute included", &|plan| flops(plan.hardware_flops));
    line("time of a step, predicted", &|plan| plan.step_s.map_or(String::new(), human::seconds));
    let mut head = vec!["plan"];
    head.extend(log.plans.iter().map(|plan| plan.stage.as_str()));
    table(&head, &rows)
}

/// Line classes of the charts, that of the stage itself first.
const CLASSES: [&str; 7] =
    ["s1 dots", "s2 dots", "s3 dots", "s4 dots", "s5 dots", "s6 dots", "s6 dots dashed"];

/// Charts of memory and time against sequence length.
fn lengths(lengths: &Lengths) -> String {
    let memory = |point: &LengthPoint| point.peak_bytes as f64;
    let per_token =
        |point: &LengthPoint| point.step_s.map_or(f64::NAN, |s| s / point.step_tokens.max(1) as f64);
    let timed = lengths.lines.iter().flat_map(|line| &line.points).any(|point| point.step_s.is_some());
    let budget = (lengths.budget_bytes > 0)
        .then(|| (lengths.budget_bytes as f64, format!("budget {}", human::bytes(lengths.budget_bytes))));
    let mut figures = vec![LineChart {
        title: "Length against memory".into(),
        note: "Planned peak of a step with these and with other places for the activations.".into(),
        y: Axis::log2_bytes("memory of a step, reserved"),
        level: budget,
        ..chart(lengths, memory, timed)
    }];
    if timed {
        figures.push(LineChart {
            title: "Length against time".into(),
            note: "Predicted time of a step, divided by its tokens; it is a prediction, not a measurement."
                .into(),
            y: Axis::log_seconds("time of a step, per token"),
            ..chart(lengths, per_token, timed)
        });
    }
    let drawn: Vec<Figure> = figures.iter().map(LineChart::draw).collect();
    let pictures = if timed { row(&drawn) } else { drawn.iter().map(Figure::html).collect() };
    pictures + &alternatives(lengths)
}

fn chart(lengths: &Lengths, of: impl Fn(&LengthPoint) -> f64, half: bool) -> LineChart {
    let series = lengths.lines.iter().enumerate().map(|(i, line)| Series {
        name: line.name.clone(),
        class: CLASSES[i % CLASSES.len()].into(),
        points: line.points.iter().map(|point| (point.tokens as f64, of(point))).collect(),
    });
    LineChart {
        title: String::new(),
        note: String::new(),
        size: if half { (520.0, 330.0) } else { (1060.0, 360.0) },
        x: Axis::log2_tokens("length of a sample [tokens]"),
        y: Axis::linear("", ""),
        series: series.collect(),
        marks: vec![Mark { x: lengths.tokens as f64, label: stage_and_length(lengths), class: "trained" }],
        level: None,
    }
}

/// Stage name and length, written once if they are the same.
fn stage_and_length(lengths: &Lengths) -> String {
    match tokens::format(lengths.tokens) {
        length if length == lengths.stage => length,
        length => format!("{}, {length}", lengths.stage),
    }
}

/// Size as a share of the budget, or as a multiple of it if very large.
fn of_budget(bytes: u64, budget: u64) -> String {
    match bytes as f64 / budget as f64 {
        times if times >= 10.0 => format!("{} times", human::grouped(times.round() as u64)),
        share => human::percent(share),
    }
}

/// Table of the alternatives at the stage's own length.
fn alternatives(lengths: &Lengths) -> String {
    let budget = lengths.budget_bytes;
    let at_stage =
        |line: &LengthLine| line.points.iter().find(|point| point.tokens == lengths.tokens).cloned();
    let points: Vec<(&LengthLine, LengthPoint)> =
        lengths.lines.iter().filter_map(|line| Some((line, at_stage(line)?))).collect();
    let timed = points.iter().any(|(_, point)| point.step_s.is_some());
    let disk = points.iter().any(|(_, point)| point.disk_bytes > 0);
    let mut head =
        vec!["activations kept".to_string(), format!("memory at {}", tokens::format(lengths.tokens))];
    head.extend((budget > 0).then(|| "of the budget".to_string()));
    head.extend(disk.then(|| "on disk".to_string()));
    head.extend(timed.then(|| "time of a step".to_string()));
    head.extend((budget > 0).then(|| format!("fits up to about, in {}", human::bytes(budget))));
    let rows: Vec<Vec<String>> = points
        .iter()
        .map(|(line, point)| {
            let mut row = vec![line.name.clone(), human::bytes(point.peak_bytes)];
            row.extend((budget > 0).then(|| of_budget(point.peak_bytes, budget)));
            row.extend(disk.then(|| match point.disk_bytes {
                0 => "-".to_string(),
                bytes => human::bytes(bytes),
            }));
            row.extend(timed.then(|| point.step_s.map_or("-".to_string(), human::seconds)));
            row.extend((budget > 0).then(|| longest(line, budget)));
            row
        })
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    table(&head, &rows)
}

/// Length at which a line crosses the budget, by linear interpolation: memory is nearly linear between neighbouring
/// lengths.
fn longest(line: &LengthLine, budget: u64) -> String {
    let (Some(first), Some(last)) = (line.points.first(), line.points.last()) else { return "-".into() };
    if first.peak_bytes > budget {
        return format!("less than {}", tokens::format(first.tokens));
    }
    if last.peak_bytes <= budget {
        return format!("{} or more", human::grouped(last.tokens));
    }
    let crossing = line.points.windows(2).find(|pair| pair[1].peak_bytes > budget);
    let Some([low, high]) = crossing else { return "-".into() };
    let below = budget.saturating_sub(low.peak_bytes);
    let share = below as f64 / high.peak_bytes.saturating_sub(low.peak_bytes).max(1) as f64;
    let length = low.tokens as f64 + share * (high.tokens as f64 - low.tokens as f64);
    // Rounded to three digits, since it is interpolated.
    let round = 10f64.powf((length.log10().floor() - 2.0).max(0.0));
    human::grouped(((length / round).floor() * round) as u64)
}
