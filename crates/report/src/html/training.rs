//! Section on training: loss over steps, tokens and time; learning rate and gradient norm.

use fathom_base::human;
use fathom_base::metrics::events::Step;

use super::table::row;
use crate::log::RunLog;
use crate::objective;
use crate::plots::{Axis, LineChart, Mark, Series};
use crate::smooth::{ema, window};
use crate::svg::Point;

/// The x axis of a chart of steps.
pub(super) struct Along {
    pub axis: Axis,
    pub of: fn(&Step) -> f64,
    /// Divisor of `of`.
    pub unit: f64,
}

impl Along {
    pub fn steps() -> Along {
        Along { axis: Axis::counts("step", ""), of: |step| step.step as f64, unit: 1.0 }
    }

    fn tokens() -> Along {
        let axis = Axis::counts("tokens trained on", " tokens");
        Along { axis, of: |step| step.tokens_total as f64, unit: 1.0 }
    }

    fn time(log: &RunLog) -> Along {
        let (word, unit) = match log.train_time_s() {
            t if t > 3.0 * 3600.0 => ("h", 3600.0),
            t if t > 180.0 => ("min", 60.0),
            _ => ("s", 1.0),
        };
        let axis = Axis::linear(&format!("training time [{word}]"), &format!(" {word}"));
        Along { axis, of: |step| step.time_s, unit }
    }

    pub fn at(&self, step: &Step) -> f64 {
        (self.of)(step) / self.unit
    }
}

/// Draws the section; empty without steps.
pub fn section(log: &RunLog) -> String {
    if log.steps.is_empty() {
        return String::new();
    }
    let tabs = [("steps", Along::steps()), ("tokens", Along::tokens()), ("time", Along::time(log))];
    let mut inputs = String::new();
    let mut panes = String::new();
    for (i, (name, along)) in tabs.iter().enumerate() {
        let checked = if i == 0 { " checked" } else { "" };
        inputs.push_str(&format!(
            "<input type=\"radio\" name=\"over\" id=\"over-{name}\"{checked}>\
             <label for=\"over-{name}\">over {name}</label>"
        ));
        panes.push_str(&format!(
            "<div class=\"pane\" id=\"pane-{name}\">{}</div>",
            loss(log, along).draw().html()
        ));
    }
    let small = row(&[learning_rate(log).draw(), gradient_norm(log).draw()]);
    format!("<div class=\"tabs\">{inputs}{panes}</div>\n{small}{}", events_note(log))
}

/// Draws the section on metrics of the objective. Two rows of two charts: rewards with their margins, and how often
/// the margin has the right sign; how often the label of a token is the most likely one, and the entropy of the
/// distribution at that token.
pub(super) fn measured(log: &RunLog) -> String {
    let line = |name: &str, class: &str| -> Option<Series> {
        let along = Along::steps();
        let value = |step: &Step| Some((along.at(step), *step.metrics.get(name)?));
        let points: Vec<Point> = log.steps.iter().filter_map(value).collect();
        (!points.is_empty()).then(|| Series { name: name.into(), class: class.into(), points })
    };
    let lines = |names: [&str; 4]| -> Vec<Series> {
        names
            .into_iter()
            .zip(["s1", "s2", "s3", "s4"])
            .filter_map(|(name, class)| line(name, class))
            .collect()
    };
    let rewards = lines(["rewards/margins", "rewards/chosen", "rewards/rejected", "margin"]);
    let right = lines(["rewards/accuracies", "accuracy", "kl", "mean_reward"]);
    let chart = |title: &str, y: &str, lines: Vec<Series>| {
        (!lines.is_empty()).then(|| small(log, title, Axis::linear(y, ""), lines).draw())
    };
    let charts =
        [chart("Rewards", "mean over the step", rewards), chart("Accuracy", "mean over the step", right)];
    let one = |name: &str| line(name, "s1").into_iter().collect::<Vec<_>>();
    let tokens = [
        chart("Token accuracy", "share of the labels", one("mean_token_accuracy")),
        chart("Entropy", "nats per token", one("entropy")),
    ];
    [charts, tokens].map(|charts| row(&charts.into_iter().flatten().collect::<Vec<_>>())).concat()
}

fn loss(log: &RunLog, along: &Along) -> LineChart {
    let axis = objective::of(log).loss;
    let values: Vec<f64> = log.steps.iter().map(|step| step.loss).collect();
    let smooth = ema(&values, window(values.len()));
    let points = |values: &[f64]| -> Vec<Point> {
        log.steps.iter().zip(values).map(|(step, y)| (along.at(step), *y)).collect()
    };
    LineChart {
        title: "Training loss".into(),
        note: format!(
            "The smooth line is an exponential average over up to about {:.0} steps.",
            window(values.len())
        ),
        size: (1060.0, 360.0),
        x: along.axis.clone(),
        y: Axis::linear(axis, if axis.contains("nats") { " nats" } else { "" }),
        series: vec![
            Series { name: "each step".into(), class: "s1 faint".into(), points: points(&values) },
            Series { name: "smoothed".into(), class: "s1".into(), points: points(&smooth) },
        ],
        marks: marks(log, along),
        level: None,
    }
}

/// Marks for stages, resumes and recoveries along x.
pub(super) fn marks(log: &RunLog, along: &Along) -> Vec<Mark> {
    // An event lies between the last step before it and the first after it; the mark is drawn at the former.
    let position = |finished: u64| {
        let before = log.steps.partition_point(|step| step.step <= finished).saturating_sub(1);
        log.steps.get(before).map_or(f64::NAN, |step| along.at(step))
    };
    let mut marks = Vec::new();
    for stage in log.stages.iter().filter(|_| log.stages.len() > 1) {
        let label = format!("{} · {}", stage.name, fathom_base::tokens::format(stage.seq_len_tokens));
        marks.push(Mark { x: position(stage.start_step), label, class: "stage" });
    }
    for resume in &log.resumes {
        marks.push(Mark { x: position(resume.step), label: "resumed".into(), class: "resume" });
    }
    for recovery in &log.recoveries {
        marks.push(Mark { x: position(recovery.step), label: "recovered".into(), class: "resume" });
    }
    marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    marks
}

fn learning_rate(log: &RunLog) -> LineChart {
    let y = Axis::zero("learning rate", "");
    small(log, "Learning rate", y, vec![series(log, "learning rate", "s3", |step| step.lr)])
}

fn gradient_norm(log: &RunLog) -> LineChart {
    let values: Vec<f64> = log.steps.iter().map(|step| step.grad_norm).collect();
    let smooth = ema(&values, window(values.len()));
    let steps = Along::steps();
    let points = log.steps.iter().zip(smooth).map(|(step, y)| (steps.at(step), y)).collect();
    let lines = vec![
        series(log, "each step", "s4 faint", |step| step.grad_norm),
        Series { name: "smoothed".into(), class: "s4".into(), points },
    ];
    small(log, "Gradient norm", Axis::zero("global norm before clipping", ""), lines)
}

/// A half-width chart over steps.
pub(super) fn small(log: &RunLog, title: &str, y: Axis, series: Vec<Series>) -> LineChart {
    let along = Along::steps();
    let mut marks = marks(log, &along);
    // The full names are shown in the large chart.
    marks.iter_mut().for_each(|mark| mark.label.clear());
    LineChart {
        title: title.into(),
        note: String::new(),
        size: (520.0, 270.0),
        x: along.axis,
        y,
        series,
        marks,
        level: None,
    }
}

pub(super) fn series(log: &RunLog, name: &str, class: &str, of: fn(&Step) -> f64) -> Series {
    let steps = Along::steps();
    let points = log.steps.iter().map(|step| (steps.at(step), of(step))).collect();
    Series { name: name.into(), class: class.into(), points }
}

fn events_note(log: &RunLog) -> String {
    let mut parts = Vec::new();
    for stage in &log.stages {
        let rope = if stage.rope.is_empty() { String::new() } else { format!(", rope {}", stage.rope) };
        let length = fathom_base::tokens::format(stage.seq_len_tokens);
        parts.push(format!(
            "{} from step {}: sequences of {length}{rope}",
            stage.name,
            stage.start_step.saturating_add(1)
        ));
    }
    if let Some(checkpoint) = log.checkpoints.last() {
        parts.push(format!(
            "{} checkpoints, the last of {} in {} with the loop standing still for {}",
            log.checkpoints.len(),
            human::bytes(checkpoint.bytes),
            human::seconds(checkpoint.seconds),
            human::seconds(checkpoint.stall_s)
        ));
    }
    if !log.resumes.is_empty() {
        let steps: Vec<String> = log.resumes.iter().map(|resume| resume.step.to_string()).collect();
        parts.push(format!("resumed after step {}", steps.join(", ")));
    }
    parts.extend(log.recoveries.iter().map(|recovery| {
        let (step, seconds) = (recovery.step, human::seconds(recovery.seconds));
        format!("went back to step {step} within {seconds}: {}", recovery.why)
    }));
    let items: String = parts.iter().map(|part| format!("<li>{}</li>", crate::svg::sentence(part))).collect();
    if items.is_empty() { items } else { format!("<ul class=\"note\">{items}</ul>\n") }
}
