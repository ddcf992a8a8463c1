//! Objectives of runs: the figures shown for each kind of objective and the section of the page that comes first. A
//! kind is a row of data.

use fathom_base::human;
use fathom_base::metrics::events::Step;

use crate::log::RunLog;
use crate::smooth::{ema, window};
use crate::verdict::{self, Verdict};

/// A metric of a step by which its objective is judged.
pub struct Headline {
    /// Name in the log, and the name of its deviation within the step, if it has one.
    metric: &'static str,
    deviation: Option<&'static str>,
    /// Name on the page, and in the line of a step.
    name: &'static str,
    short: &'static str,
    show: fn(f64) -> String,
}

const fn headline(
    metric: &'static str,
    name: &'static str,
    short: &'static str,
    show: fn(f64) -> String,
) -> Headline {
    Headline { metric, deviation: None, name, short, show }
}

fn plain(value: f64) -> String {
    format!("{value:.3}")
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

/// Metrics of policies that learn from rewards.
const REWARDS: &[Headline] = &[
    Headline { deviation: Some("reward_std"), ..headline("reward", "reward", "reward", plain) },
    headline("completions/mean_length", "answer length", "length", whole),
    headline("kl", "KL to the reference", "kl", plain),
];
/// Metrics of answers that are compared or judged.
const PREFERENCES: &[Headline] = &[
    headline("rewards/accuracies", "preferred", "accuracy", human::percent),
    headline("rewards/margins", "margin", "margin", plain),
    headline("accuracy", "preferred", "accuracy", human::percent),
    headline("margin", "margin", "margin", plain),
];

/// A kind of objective.
pub struct Objective {
    is: fn(&RunLog) -> bool,
    headlines: &'static [Headline],
    /// Figures shown after the headlines.
    tiles: &'static [fn(&RunLog) -> Option<Verdict>],
    /// Id of the section that comes first.
    pub first: &'static str,
    /// Axis label of the loss.
    pub loss: &'static str,
    /// True if the run is judged by context and compression.
    pub of_text: bool,
}

const COMMON: &[fn(&RunLog) -> Option<Verdict>] = &[loss, verdict::speed, verdict::memory, verdict::amount];

/// Kinds of objectives; the first one that matches a log applies.
const OBJECTIVES: [Objective; 4] = [
    Objective {
        is: |log| has(log, "reward"),
        headlines: REWARDS,
        tiles: COMMON,
        first: "rewards",
        loss: "loss",
        of_text: false,
    },
    Objective {
        is: |log| PREFERENCES.iter().any(|headline| has(log, headline.metric)),
        headlines: PREFERENCES,
        tiles: COMMON,
        first: "measured",
        loss: "loss",
        of_text: false,
    },
    Objective {
        is: |log| {
            log.lesson.is_some() && !log.answers.iter().any(|answers| answers.when.ends_with("_lesson"))
        },
        headlines: &[],
        tiles: &[
            verdict::answers_loss,
            verdict::answers_accuracy,
            loss,
            verdict::speed,
            verdict::memory,
            verdict::amount,
        ],
        first: "lessons",
        loss: "loss [nats per token]",
        of_text: false,
    },
    Objective {
        is: |_| true,
        headlines: &[],
        tiles: &[
            loss,
            verdict::bits,
            verdict::needle,
            verdict::long_context,
            verdict::short_context,
            verdict::speed,
            verdict::memory,
            verdict::amount,
        ],
        first: "training",
        loss: "loss [nats per token]",
        of_text: true,
    },
];

fn has(log: &RunLog, metric: &str) -> bool {
    log.steps.iter().any(|step| step.metrics.contains_key(metric))
}

/// Returns the objective of a run.
pub fn of(log: &RunLog) -> &'static Objective {
    OBJECTIVES.iter().find(|objective| (objective.is)(log)).unwrap_or(&OBJECTIVES[3])
}

impl Objective {
    /// Returns the figures available in the log, in display order.
    pub fn figures(&self, log: &RunLog) -> Vec<Verdict> {
        let headlines = self.headlines.iter().filter_map(|headline| headline.figure(log));
        headlines.chain(self.tiles.iter().filter_map(|tile| tile(log))).collect()
    }
}

impl Headline {
    fn figure(&self, log: &RunLog) -> Option<Verdict> {
        let of = |step: &Step| step.metrics.get(self.metric).copied().filter(|value| value.is_finite());
        let values: Vec<f64> = log.steps.iter().filter_map(of).collect();
        let (first, last) = (values.first()?, ema(&values, window(values.len())).last().copied()?);
        let mut note = format!("at the end, smoothed; {} at first", (self.show)(*first));
        let deviation = self.deviation.and_then(|name| log.steps.last()?.metrics.get(name).copied());
        if let Some(deviation) = deviation {
            note = format!("{note}; deviation {} in the last step", (self.show)(deviation));
        }
        Some(Verdict { name: self.name, value: (self.show)(last), note, passes: None })
    }

    fn in_a_step(&self, step: &Step) -> Option<String> {
        let value = (self.show)(*step.metrics.get(self.metric)?);
        let deviation = self.deviation.and_then(|name| step.metrics.get(name));
        let around = deviation.map_or(String::new(), |deviation| format!(" ± {}", (self.show)(*deviation)));
        Some(format!("{} {value}{around}", self.short))
    }
}

/// Returns a line with the metrics by which a step is judged: those of its objective, or its loss.
pub fn step_line(step: &Step) -> String {
    let of = |headlines: &[Headline]| -> Vec<String> {
        headlines.iter().filter_map(|headline| headline.in_a_step(step)).collect()
    };
    let loss = format!("loss {:.3}", step.loss);
    match (step.metrics.contains_key("reward"), of(PREFERENCES)) {
        (true, _) => of(REWARDS).join("  "),
        (false, preferences) => std::iter::once(loss).chain(preferences).collect::<Vec<_>>().join("  "),
    }
}

/// Returns every figure available in the log, in display order.
pub fn verdicts(log: &RunLog) -> Vec<Verdict> {
    of(log).figures(log)
}

pub(crate) fn loss(log: &RunLog) -> Option<Verdict> {
    let losses: Vec<f64> = log.steps.iter().map(|step| step.loss).collect();
    let (first, last) = (losses.first()?, ema(&losses, window(losses.len())).last().copied()?);
    let unit = if of(log).loss.contains("nats") { "nats, " } else { "" };
    let note = format!("{unit}smoothed; step {} began at {first:.2}", log.steps.first()?.step);
    let bad = losses.iter().filter(|loss| !loss.is_finite()).count();
    let note = if bad > 0 { format!("{note}; {bad} steps not finite") } else { note };
    Some(Verdict { name: "training loss", value: format!("{last:.3}"), note, passes: None })
}

#[cfg(test)]
mod tests {
    use fathom_base::metrics::events::{EvalAnswers, EvalBits, Lesson};

    use super::*;

    fn step(metrics: &[(&str, f64)]) -> Step {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_string(), *value)).collect();
        Step { step: 1, loss: -0.005, tokens_per_s: 9.0, metrics, ..Step::default() }
    }

    fn names(log: &RunLog) -> Vec<&'static str> {
        of(log).figures(log).iter().map(|figure| figure.name).take(3).collect()
    }

    #[test]
    fn a_run_is_headed_by_what_its_objective_measures() {
        let bits = EvalBits { bits_per_byte: 5.0, gzip_bits_per_byte: 3.0, ..EvalBits::default() };
        let of_steps = |steps: Vec<Step>| RunLog { steps, bits: vec![bits.clone()], ..RunLog::default() };
        let rewarded =
            of_steps(vec![step(&[("reward", 0.31), ("reward_std", 0.2), ("completions/mean_length", 40.0)])]);
        assert_eq!(names(&rewarded), ["reward", "answer length", "training loss"]);
        let reward = of(&rewarded).figures(&rewarded).swap_remove(0);
        assert!(reward.note.contains("deviation 0.200"), "{}", reward.note);
        let compared = of_steps(vec![step(&[("rewards/accuracies", 0.75), ("rewards/margins", 0.1)])]);
        assert_eq!(names(&compared), ["preferred", "margin", "training loss"]);
        let answers =
            |when: &str, loss: f64| EvalAnswers { when: when.into(), loss, ..EvalAnswers::default() };
        let taught = RunLog {
            lesson: Some(Lesson::default()),
            answers: vec![answers("before_training", 4.0), answers("after_training", 2.0)],
            ..of_steps(vec![step(&[])])
        };
        assert_eq!(names(&taught), ["held-out answers", "held-out accuracy", "training loss"]);
        assert_eq!(names(&of_steps(vec![step(&[])]))[..2], ["training loss", "held-out bits per byte"]);
        // The loss of a policy is not in nats.
        let loss = of(&rewarded).figures(&rewarded).into_iter().find(|figure| figure.name == "training loss");
        assert!(!loss.unwrap().note.contains("nats"));
    }

    #[test]
    fn the_line_of_a_step_has_the_objectives_numbers() {
        for (metrics, expected) in [
            (&[("reward", 0.31), ("reward_std", 0.2), ("kl", 0.01)][..], "reward 0.310 ± 0.200  kl 0.010"),
            (&[("rewards/accuracies", 0.75)], "loss -0.005  accuracy 75.0 %"),
            (&[("entropy", 1.0)], "loss -0.005"),
        ] {
            assert_eq!(step_line(&step(metrics)), expected);
        }
    }
}
