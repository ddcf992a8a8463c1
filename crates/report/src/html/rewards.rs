//! Section on rewards: rewards and lengths of a policy's answers, distance from the reference, and sample answers
//! over time.

use fathom_base::metrics::events::{RolledAnswer, Rollout, Step};

use super::table::row;
use super::training::{Along, small};
use crate::log::RunLog;
use crate::plots::{Axis, Series};
use crate::svg::escape;

/// Number of rollouts whose answers are shown side by side.
const SHOWN: usize = 4;

/// Draws the section; empty without rollouts.
pub fn section(log: &RunLog) -> String {
    if log.rollouts.is_empty() {
        return String::new();
    }
    let line = |name: &str, class: &str, key: &str| of(log, name, class, &|step| metric(step, key));
    let around =
        |by: f64| move |step: &Step| Some(metric(step, "reward")? + by * metric(step, "reward_std")?);
    let reward = small(
        log,
        "Reward",
        Axis::linear("mean of a rollout, and a deviation around it", ""),
        vec![
            line("mean", "s1", "reward"),
            of(log, "a deviation above", "s1 faint", &around(1.0)),
            of(log, "a deviation below", "s1 faint", &around(-1.0)),
        ],
    );
    let length = small(
        log,
        "Length",
        Axis::zero("tokens of an answer", " tokens"),
        vec![
            line("mean", "s2", "completions/mean_length"),
            line("shortest", "s2 faint", "completions/min_length"),
            line("longest", "s2 faint", "completions/max_length"),
        ],
    );
    let clip = small(
        log,
        "Clipped tokens",
        Axis::zero("share of the tokens", ""),
        vec![line("below", "s3", "clip_ratio/low_mean"), line("above", "s4", "clip_ratio/high_mean")],
    );
    let kl = small(
        log,
        "Divergence",
        Axis::linear("nats per token", " nats"),
        vec![line("from the reference", "s1", "kl"), line("from the sampler", "s3", "policy/approxkl_avg")],
    );
    let charts = row(&[reward.draw(), length.draw()]) + &row(&[clip.draw(), kl.draw()]);
    let every = log.rollouts.len().div_ceil(SHOWN).max(1);
    // The last rollout is always included.
    let last = log.rollouts.len() - 1;
    let chosen = log.rollouts.iter().enumerate().filter(|(at, _)| (last - at).is_multiple_of(every));
    let columns: String = chosen.map(|(_, rollout)| column(rollout)).collect();
    format!("{charts}<p class=\"note\">Answers over time; the prompt is bold.</p>{columns}")
}

fn metric(step: &Step, key: &str) -> Option<f64> {
    step.metrics.get(key).copied().filter(|value| value.is_finite())
}

fn of(log: &RunLog, name: &str, class: &str, of: &dyn Fn(&Step) -> Option<f64>) -> Series {
    let along = Along::steps();
    let points = log.steps.iter().filter_map(|step| Some((along.at(step), of(step)?))).collect();
    Series { name: name.into(), class: class.into(), points }
}

fn column(rollout: &Rollout) -> String {
    let answer = |it: &RolledAnswer| {
        format!("<pre><b>{}</b>{}\n<i>{:.3}</i></pre>", escape(&it.prompt), escape(&it.text), it.reward)
    };
    let answers: String = rollout.answers.iter().map(answer).collect();
    format!(
        "<figure class=\"sample\"><figcaption>before step {}</figcaption>{answers}</figure>\n",
        rollout.step
    )
}
