//! Comparison of two runs: differences in recipe, plan and results, the first step whose losses differ in any bit,
//! and the first differing tensor of a checkpoint.

use std::collections::BTreeSet;
use std::fmt;

use fathom_base::human;
use fathom_base::metrics::events::Step;
use fathom_base::recipe::{Difference, diff};
use serde::Serialize;

use crate::log::RunLog;
use crate::smooth::quantile;

/// A figure of both runs; `-` if a run does not have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Name of the figure.
    pub name: String,
    /// Value in the left run.
    pub left: String,
    /// Value in the right run.
    pub right: String,
}

/// The first step at which the losses of two runs differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstDifference {
    /// Number of finished updates.
    pub step: u64,
    /// Loss of the left run.
    pub left_loss: f64,
    /// Loss of the right run.
    pub right_loss: f64,
    /// The left loss as `f32` bits.
    pub left_bits: u32,
    /// The right loss as `f32` bits.
    pub right_bits: u32,
}

/// The first tensor of two checkpoints that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorParting {
    /// Part of the checkpoint: `model`, `moment1`, `moment2` or `master`.
    pub part: String,
    /// Hugging Face name of the tensor.
    pub name: String,
    /// Shape in the left run.
    pub shape: Vec<usize>,
    /// Difference of the elements; `None` if one run lacks the tensor or has it in another shape.
    pub elements: Option<ElementParting>,
}

/// Difference between the elements of two tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ElementParting {
    /// Index of the first differing element, row-major.
    pub index: Vec<usize>,
    /// Value of that element in the left run.
    pub left: f32,
    /// Value of that element in the right run.
    pub right: f32,
    /// Largest absolute difference of two elements; NaN if an element is not a number.
    pub max_abs_difference: f32,
    /// Number of differing elements.
    pub count: u64,
}

/// Difference between the newest checkpoints that two runs have at the same step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointDiff {
    /// Number of finished updates.
    pub step: u64,
    /// Number of tensors of the left run, over all parts.
    pub tensors: u64,
    /// Number of differing tensors.
    pub differing: u64,
    /// First differing tensor, in the order of parts and files.
    pub first: Option<TensorParting>,
}

/// Differences between two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunDiff {
    /// Names of the two runs.
    pub names: (String, String),
    /// Recipe keys whose values differ.
    pub recipe: Vec<Difference>,
    /// Figures of plan, loss, memory and speed.
    pub figures: Vec<Pair>,
    /// Number of steps that both runs have.
    pub common_steps: u64,
    /// First common step whose loss bits differ, if any.
    pub parting: Option<FirstDifference>,
    /// Comparison of the newest checkpoint that both have. Set by a caller that can read tensors.
    pub checkpoint: Option<CheckpointDiff>,
    /// Rewards that may give the same answers other numbers (`pure = false`). Set by a caller that can read the runs'
    /// files.
    pub impure: Vec<String>,
}

/// Compares two logs, matching steps by number.
pub fn compare(left: &RunLog, right: &RunLog) -> RunDiff {
    let rows = |log: &RunLog| log.run.as_ref().map_or(Vec::new(), |run| run.recipe.clone());
    let pairs: Vec<(&Step, &Step)> = common(left, right);
    let parting = pairs.iter().find(|(l, r)| l.loss_bits != r.loss_bits).map(|(l, r)| FirstDifference {
        step: l.step,
        left_loss: l.loss,
        right_loss: r.loss,
        left_bits: l.loss_bits,
        right_bits: r.loss_bits,
    });
    RunDiff {
        names: (left.name().to_string(), right.name().to_string()),
        recipe: diff(&rows(left), &rows(right)),
        figures: figures(left, right, &pairs),
        common_steps: pairs.len() as u64,
        parting,
        checkpoint: None,
        impure: Vec::new(),
    }
}

/// Pairs the steps with equal numbers; both lists are in ascending order.
fn common<'a>(left: &'a RunLog, right: &'a RunLog) -> Vec<(&'a Step, &'a Step)> {
    let mut others = right.steps.iter().peekable();
    let mut out = Vec::new();
    for step in &left.steps {
        while others.next_if(|other| other.step < step.step).is_some() {}
        if let Some(other) = others.next_if(|other| other.step == step.step) {
            out.push((step, other));
        }
    }
    out
}

/// Planned bytes of a category, from the plan with the highest peak.
fn planned(log: &RunLog, category: &str) -> Option<String> {
    let highest = log.plans.iter().max_by_key(|plan| plan.peak_live_bytes)?;
    highest.by_category.get(category).filter(|bytes| **bytes > 0).map(|bytes| human::bytes(*bytes))
}

fn figures(left: &RunLog, right: &RunLog, common: &[(&Step, &Step)]) -> Vec<Pair> {
    let mut out = Vec::new();
    let mut add = |name: &str, of: &dyn Fn(&RunLog) -> Option<String>| {
        let (l, r) = (of(left), of(right));
        if l.is_some() || r.is_some() {
            let or_dash = |side: Option<String>| side.unwrap_or_else(|| "-".to_string());
            out.push(Pair { name: name.to_string(), left: or_dash(l), right: or_dash(r) });
        }
    };
    add("parameters", &|log| log.model.as_ref().map(|model| human::grouped(model.params)));
    let plan = |log: &RunLog, of: fn(&fathom_base::metrics::events::Plan) -> u64| {
        log.plans.iter().map(of).max().map(human::bytes)
    };
    add("planned peak, live", &|log| plan(log, |plan| plan.peak_live_bytes));
    add("planned peak, reserved", &|log| plan(log, |plan| plan.peak_reserved_bytes));
    let categories: BTreeSet<&String> = [left, right]
        .into_iter()
        .flat_map(|log| &log.plans)
        .flat_map(|plan| plan.by_category.keys())
        .collect();
    for category in categories {
        add(&format!("planned {category} at the peak"), &|log| planned(log, category));
    }
    add("pool peak", &|log| log.steps.iter().map(|step| step.pool_peak_bytes).max().map(human::bytes));
    add("resident, anonymous", &|log| log.steps.iter().map(|step| step.rss_bytes).max().map(human::bytes));
    add("steps", &|log| log.steps.last().map(|step| step.step.to_string()));
    add("tokens", &|log| log.steps.last().map(|step| human::grouped(step.tokens_total)));
    add("first loss", &|log| log.steps.first().map(|step| format!("{:.6}", step.loss)));
    add("last loss", &|log| log.steps.last().map(|step| format!("{:.6}", step.loss)));
    if let Some((l, r)) = common.last() {
        let loss = |step: &Step| Some(format!("{:.6}", step.loss));
        add(&format!("loss at step {}", l.step), &|log| loss(if std::ptr::eq(log, left) { l } else { r }));
    }
    let median = |log: &RunLog, of: fn(&Step) -> f64| {
        let x = quantile(log.steps.iter().map(of), 0.5);
        x.is_finite().then(|| human::number(x))
    };
    add("tokens/s, median", &|log| median(log, |step| step.tokens_per_s));
    add("causal-model TFLOP/s, median", &|log| median(log, |step| step.model_tflops));
    add("bits per byte", &|log| log.bits.last().map(|bits| format!("{:.4}", bits.bits_per_byte)));
    out
}

impl fmt::Display for RunDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "recipe")?;
        if self.recipe.is_empty() {
            writeln!(f, "  the same")?;
        }
        for difference in &self.recipe {
            writeln!(f, "  {difference}")?;
        }
        let (left, right) = (&self.names.0, &self.names.1);
        writeln!(f, "figures{:25}{left:>18}{right:>18}", "")?;
        for pair in &self.figures {
            writeln!(f, "  {:30}{:>18}{:>18}", pair.name, pair.left, pair.right)?;
        }
        match &self.parting {
            None if self.common_steps == 0 => writeln!(f, "loss: no step in common"),
            None => writeln!(f, "loss: the same bits in all {} common steps", self.common_steps),
            Some(p) => writeln!(
                f,
                "loss: bits first differ at step {}: {} ({:#010x}) against {} ({:#010x})",
                p.step, p.left_loss, p.left_bits, p.right_loss, p.right_bits
            ),
        }?;
        if !self.impure.is_empty() {
            let names = self.impure.join(", ");
            writeln!(f, "rewards that are not pure: {names}; the runs need not agree")?;
        }
        match &self.checkpoint {
            None => writeln!(f, "checkpoints: none of a step in common"),
            Some(CheckpointDiff { step, tensors, first: None, .. }) => {
                writeln!(f, "checkpoint of step {step}: the same bits in all {tensors} tensors")
            }
            Some(CheckpointDiff { step, tensors, differing, first: Some(first) }) => {
                writeln!(
                    f,
                    "checkpoint of step {step}: {differing} of {tensors} tensors differ, first {first}"
                )
            }
        }
    }
}

impl fmt::Display for TensorParting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {:?}", self.part, self.name, self.shape)?;
        match &self.elements {
            None => write!(f, ", which the right run lacks or has in another shape"),
            Some(e) => write!(
                f,
                " at {:?}: {:e} against {:e}; {} elements differ, by up to {:e}",
                e.index, e.left, e.right, e.count, e.max_abs_difference
            ),
        }
    }
}
