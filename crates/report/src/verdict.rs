//! The few figures by which a run is judged, shown as cards on the page and as lines at the end of a run.

use fathom_base::metrics::events::{EvalPosition, Needle, PositionBucket, Step};
use fathom_base::{human, tokens};

use crate::log::RunLog;
use crate::smooth::quantile;

/// One figure of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Name of the figure.
    pub name: &'static str,
    /// Value with its unit.
    pub value: String,
    /// Comparison or explanation.
    pub note: String,
    /// Whether it passes its bar; `None` where there is no bar, or where the run had too few tokens to reach it.
    pub passes: Option<bool>,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = match self.passes {
            Some(true) => "✓ ",
            Some(false) => "✗ ",
            None => "",
        };
        write!(f, "{:22} {:>14}  {sign}{}", self.name, self.value, self.note)
    }
}

/// Returns the figures of a plan, for the stage that needs the most memory.
pub fn planned(log: &RunLog) -> Vec<Verdict> {
    let Some(plan) = log.plans.iter().max_by_key(|plan| plan.peak_reserved_bytes) else { return Vec::new() };
    let budget = log.lengths.iter().map(|lengths| lengths.budget_bytes).find(|bytes| *bytes > 0);
    let fits = budget.map(|budget| plan.peak_reserved_bytes <= budget);
    let against = match (budget, fits) {
        (Some(budget), Some(true)) => format!("fits in {}", human::bytes(budget)),
        (Some(budget), _) => format!("does not fit in {}", human::bytes(budget)),
        (None, _) => "reserved".to_string(),
    };
    let mut figures = vec![Verdict {
        name: "memory",
        value: human::bytes(plan.peak_reserved_bytes),
        note: format!("{against}; stage {}", plan.stage),
        passes: fits,
    }];
    figures.extend((!plan.peak_op.is_empty()).then(|| {
        let note = format!("live then; of stage {}", plan.stage);
        let value = human::bytes(plan.peak_live_bytes);
        Verdict { name: "peak", value, note: format!("in {}, {note}", plan.peak_op), passes: None }
    }));
    if plan.disk_peak_bytes > 0 {
        let note = format!("{} written and read in a step", human::bytes(plan.disk_bytes));
        figures.push(Verdict { name: "disk", value: human::bytes(plan.disk_peak_bytes), note, passes: None });
    }
    if let Some(step_s) = plan.step_s {
        let note = format!("a step of stage {}, predicted", plan.stage);
        figures.push(Verdict { name: "time", value: human::seconds(step_s), note, passes: None });
    }
    if plan.step_flops > 0.0 {
        let more = human::percent(plan.hardware_flops / plan.step_flops - 1.0).replace(' ', "\u{a0}");
        let note = format!("a step; recompute and score products add {more}");
        let value = format!("{}FLOP", human::si(plan.step_flops));
        figures.push(Verdict { name: "work", value, note, passes: None });
    }
    figures
}

/// Loss on the learned tokens of held-out lessons.
pub(crate) fn answers_loss(log: &RunLog) -> Option<Verdict> {
    let (before, after) = (log.answers.first()?, log.answers.last()?);
    let was = if before.when == after.when { String::new() } else { format!("; {:.3} before", before.loss) };
    let note = format!("nats per learned token of {} held-out lessons{was}", human::grouped(after.lessons));
    Some(Verdict { name: "held-out answers", value: format!("{:.3}", after.loss), note, passes: None })
}

/// How often the most likely token is the right one on held-out lessons.
pub(crate) fn answers_accuracy(log: &RunLog) -> Option<Verdict> {
    let (before, after) = (log.answers.first()?, log.answers.last()?);
    let was = human::percent(before.token_accuracy);
    let was = if before.when == after.when { String::new() } else { format!("; {was} before") };
    let note = format!("of the learned tokens of held-out lessons are the likeliest{was}");
    Some(Verdict {
        name: "held-out accuracy",
        value: human::percent(after.token_accuracy),
        note,
        passes: None,
    })
}

pub(crate) fn bits(log: &RunLog) -> Option<Verdict> {
    let all = log.bits.last()?;
    let below = all.bits_per_byte < all.gzip_bits_per_byte;
    let (word, windows) = (if below { "below" } else { "not below" }, in_windows(all.context_tokens));
    let compared = all.gzip_bits_per_byte.is_finite();
    let note = if compared {
        format!("{word} gzip -9, {:.3}{windows}", all.gzip_bits_per_byte)
    } else {
        format!("{}{windows}", all.name)
    };
    let value = format!("{:.3}", all.bits_per_byte);
    let verdict = Verdict { name: "held-out bits per byte", value, note, passes: None };
    Some(if compared { judged(log, verdict, below) } else { verdict })
}

/// Describes the windows in which bits per byte were measured.
pub(crate) fn in_windows(context_tokens: u64) -> String {
    match context_tokens {
        0 => String::new(),
        context => format!("; in windows of {} tokens", tokens::format(context)),
    }
}

/// Share of needles found at the longest tested length.
pub(crate) fn needle(log: &RunLog) -> Option<Verdict> {
    let [first, after] = log.needle_before_and_after();
    let (needle, longest) = (after?, *after?.lengths_tokens.last()?);
    let share = needle_at(needle, longest)?;
    let mut note = format!("at {} tokens, the longest tested; 80\u{a0}% wanted", tokens::format(longest));
    let short = log.short_tokens().filter(|short| *short < longest);
    if let Some((share, short)) = short.and_then(|short| needle_within(needle, short)) {
        note += &format!("; {} up to {}", percent(share), tokens::format(short));
    }
    if log.model.as_ref().is_some_and(|model| model.init == "induction") {
        note += &format!("; {}", circuit(log, first, longest));
    }
    let verdict = Verdict { name: "needle found", value: percent(share), note, passes: None };
    Some(judged(log, verdict, share >= 0.8))
}

/// Describes how much the result owes to a copying circuit built into the initial weights.
fn circuit(log: &RunLog, first: Option<&Needle>, longest: u64) -> String {
    let found = first.and_then(|first| {
        let at = first.lengths_tokens.iter().rev().find(|tokens| **tokens <= longest)?;
        Some(format!("{} at {}", percent(needle_at(first, *at)?), tokens::format(*at)))
    });
    let found = found.map_or("was not measured".to_string(), |found| format!("found {found}"));
    let drills = percent(log.drill_share());
    format!(
        "the model begins with a built-in copying circuit, which {found} before step 0, and {drills} of its tokens are look-up drills"
    )
}

fn percent(share: f64) -> String {
    format!("{:.0}\u{a0}%", share * 100.0)
}

/// Mean accuracy over all depths at a length.
pub fn needle_at(needle: &Needle, length: u64) -> Option<f64> {
    let column = needle.lengths_tokens.iter().position(|tokens| *tokens == length)?;
    let cells: Vec<f64> = needle.accuracy.iter().filter_map(|row| row.get(column).copied()).collect();
    let mean = cells.iter().sum::<f64>() / cells.len() as f64;
    mean.is_finite().then_some(mean)
}

/// The figure with its mark. A run that trained on too few tokens for it may pass and cannot fail.
fn judged(log: &RunLog, verdict: Verdict, passes: bool) -> Verdict {
    if passes || log.too_few_tokens().is_none() {
        return Verdict { passes: Some(passes), ..verdict };
    }
    Verdict { note: format!("not enough tokens; {}", verdict.note), passes: None, ..verdict }
}

/// Mean accuracy over all depths and the lengths up to `longest`, and the largest such length. Prompt lengths are
/// slightly below the round figure, never above it.
pub fn needle_within(needle: &Needle, longest: u64) -> Option<(f64, u64)> {
    let columns: Vec<usize> =
        (0..needle.lengths_tokens.len()).filter(|c| needle.lengths_tokens[*c] <= longest).collect();
    let cells: Vec<f64> = needle
        .accuracy
        .iter()
        .flat_map(|row| columns.iter().filter_map(|c| row.get(*c).copied()))
        .filter(|share| share.is_finite())
        .collect();
    let last = needle.lengths_tokens[*columns.last()?];
    (!cells.is_empty()).then(|| (cells.iter().sum::<f64>() / cells.len() as f64, last))
}

/// Benefit of the long context; a difference that may be due to chance neither passes nor fails.
pub(crate) fn long_context(log: &RunLog) -> Option<Verdict> {
    let eval = log.contexts.last()?;
    let (gain, error) = (eval.cut_loss - eval.full_loss, eval.standard_error);
    let around = if error.is_finite() { format!(" ± {error:.3}") } else { String::new() };
    let shown = gain.abs() > CHANCE * error;
    let what = match (shown, gain > 0.0) {
        (false, _) => "nats per token, less than chance shows:",
        (true, true) => "nats per token gained by",
        (true, false) => "nats per token lost by",
    };
    let [full, cut] = [eval.full_tokens, eval.cut_tokens].map(tokens::format);
    let note = format!(
        "{what} a context of up to {full} in the place of {cut} tokens, for the same {} tokens",
        human::grouped(eval.tokens)
    );
    let verdict =
        Verdict { name: "worth of context", value: format!("{gain:+.3}{around}"), note, passes: None };
    gain.is_finite().then(|| if shown { judged(log, verdict, gain > 0.0) } else { verdict })
}

/// Number of standard errors below which a difference is attributed to chance.
const CHANCE: f64 = 2.0;

/// Effect of extension on the short context: change of the loss there.
pub(crate) fn short_context(log: &RunLog) -> Option<Verdict> {
    let (before, after) = (log.positions.first()?, log.positions.last()?);
    let (short, _) = short_and_long(after, log.short_tokens()?)?;
    let same = before.buckets.iter().find(|b| (b.from, b.to) == (short.from, short.to) && b.tokens > 0)?;
    let by = after.when.strip_prefix("after_").unwrap_or("training");
    (before.when != after.when).then(|| Verdict {
        name: "short-context loss",
        value: format!("{:+.3}", short.loss - same.loss),
        note: format!("change by {by} at {}; {:.3} before", span(short), same.loss),
        passes: None,
    })
}

/// Returns the last bucket within the short length and the last of all; `None` unless the last lies beyond that
/// length.
pub fn short_and_long(eval: &EvalPosition, short_tokens: u64) -> Option<(&PositionBucket, &PositionBucket)> {
    let filled = || eval.buckets.iter().filter(|b| b.tokens > 0 && b.loss.is_finite());
    let short = filled().rfind(|bucket| bucket.to <= short_tokens)?;
    let long = filled().next_back()?;
    (long.from >= short_tokens).then_some((short, long))
}

/// Writes a bucket as `16k–32k`.
pub fn span(bucket: &PositionBucket) -> String {
    format!("{}–{}", tokens::format(bucket.from), tokens::format(bucket.to))
}

pub(crate) fn speed(log: &RunLog) -> Option<Verdict> {
    // Only the longest sequences count, since an earlier, shorter stage has most of the steps. The median is
    // insensitive to the first steps, in which caches warm up.
    let length = |step: &Step| {
        log.stages.iter().find(|stage| stage.index == step.stage).map(|stage| stage.seq_len_tokens)
    };
    let longest = log.steps.iter().filter_map(length).max();
    let steps = || log.steps.iter().filter(|step| longest.is_none() || length(step) == longest);
    let median = |f: fn(&Step) -> f64| quantile(steps().map(f), 0.5);
    let rate = median(|step| step.tokens_per_s);
    let at = longest.map_or(String::new(), |length| format!(" at {} tokens", tokens::format(length)));
    let note = format!("tokens/s{at}, median; {:.2} causal-model TFLOP/s", median(|s| s.model_tflops));
    let stage = log.stages.iter().find(|stage| Some(stage.seq_len_tokens) == longest);
    let plan = stage.and_then(|stage| log.plans.iter().find(|plan| plan.stage == stage.name));
    let planned = plan.and_then(|plan| plan.step_s).map_or(String::new(), |planned_s| {
        let [step, planned] = [median(|step| step.step_s), planned_s].map(human::seconds);
        format!("; a step takes {step}, {planned} predicted")
    });
    let note = format!("{note}{planned}");
    let value = human::grouped(rate.round().max(0.0) as u64);
    rate.is_finite().then_some(Verdict { name: "speed", value, note, passes: None })
}

pub(crate) fn memory(log: &RunLog) -> Option<Verdict> {
    let peak = log.steps.iter().map(|step| step.pool_peak_bytes).max().filter(|peak| *peak > 0)?;
    let planned = log.plans.iter().map(|plan| plan.peak_live_bytes).max().filter(|planned| *planned > 0);
    let of = if log.num_ranks() > 1 { "pool peak of the first rank" } else { "pool peak" };
    let (note, passes) = match planned {
        Some(planned) if planned == peak => (format!("{of}, planned to the byte"), Some(true)),
        Some(planned) => (format!("{of}; planned {}", human::bytes(planned)), Some(peak <= planned)),
        None => (of.to_string(), None),
    };
    Some(Verdict { name: "memory", value: human::bytes(peak), note, passes })
}

/// A run with a given time is late if it takes more than this multiple of it.
const LATE: f64 = 1.02;

pub(crate) fn amount(log: &RunLog) -> Option<Verdict> {
    let last = log.steps.last()?;
    let time = log.done.as_ref().map_or(last.time_s, |done| done.time_s);
    let what = if log.done.is_some() { "whole run" } else { "so far" };
    let given = log.done.as_ref().map(|done| done.given_s).filter(|given| *given > 0.0);
    let of = given.map_or(String::new(), |given| format!("of {}; ", human::seconds(given)));
    let note = format!(
        "{of}{what}; {} tokens in {}",
        human::count(last.tokens_total),
        human::counted(last.step, "step")
    );
    let passes = given.map(|given| time <= LATE * given);
    Some(Verdict { name: "time", value: human::seconds(time), note, passes })
}
