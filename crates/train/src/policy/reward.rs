//! Rewards that score answers, and their weighted sum.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use serde_json::{Map, Value};

/// An answer to score.
#[derive(Clone, Copy, Debug)]
pub struct RewardInput<'a> {
    /// The row with its prompt.
    pub row: &'a Map<String, Value>,
    /// The prompt's text.
    pub prompt: &'a str,
    /// Its text without the end token; with several turns, that of the last one.
    pub text: &'a str,
    /// For an episode: all messages after the prompt, each `{"role": .., "content": ..}`.
    pub messages: &'a [Value],
    /// Total reward from an environment.
    pub earned: Option<f64>,
    /// Number of tokens.
    pub tokens: usize,
    /// True if it ended by itself.
    pub ended: bool,
}

/// One component of an answer's total reward.
pub trait Reward {
    /// A score for each answer; `None` excludes the answer from all sums and means.
    ///
    /// # Errors
    /// A message with a remedy: a row that lacks a required key, a process that fails.
    fn score(&self, answers: &[RewardInput<'_>]) -> Numbers;

    /// Starts to score answers on another thread, if that is possible: rewards that use the run's device cannot
    /// ([`super::apart`]).
    fn begin(&self, _: &Arc<[Answer]>) -> Option<PendingScores> {
        None
    }
}

/// A reward with its name and weight.
pub struct WeightedReward {
    /// Name in logs.
    pub name: String,
    /// Weight in the sum.
    pub weight: f64,
    /// The reward.
    pub reward: Box<dyn Reward>,
}

/// The rewards of some answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Scores by reward, in order: one per answer, NaN if it does not count.
    pub each: Vec<Vec<f64>>,
    /// The weighted sums; NaN if no reward scored the answer, or one returned a number that is not finite.
    pub sums: Vec<f64>,
    /// Indices of the answers for which a reward returned a number that is not finite.
    pub wrong: Vec<usize>,
}

/// Scores answers by all rewards.
///
/// # Errors
/// Those of [`Reward::score`], with the reward's name.
pub fn score(parts: &[WeightedReward], answers: &[RewardInput<'_>]) -> Result<Scores, String> {
    score_coming(parts, answers, Vec::new())
}

/// [`score`] with some results already being computed, by reward.
///
/// # Errors
/// Those of [`score`].
pub fn score_coming(
    parts: &[WeightedReward],
    answers: &[RewardInput<'_>],
    coming: Vec<Option<PendingScores>>,
) -> Result<Scores, String> {
    let mut coming = coming.into_iter();
    let mut scores = Scores { each: Vec::new(), sums: vec![f64::NAN; answers.len()], wrong: Vec::new() };
    let mut wrong = vec![false; answers.len()];
    for WeightedReward { name, weight, reward } in parts {
        let found = coming.next().flatten().map_or_else(|| reward.score(answers), PendingScores::wait);
        let found = found.map_err(|why| format!("reward `{name}`: {why}"))?;
        if found.len() != answers.len() {
            return Err(format!(
                "reward `{name}`: gave {} numbers for {} answers",
                found.len(),
                answers.len()
            ));
        }
        for (at, found) in found.iter().enumerate() {
            let Some(found) = found else { continue };
            let before = if scores.sums[at].is_nan() { 0.0 } else { scores.sums[at] };
            scores.sums[at] = before + weight * found;
            wrong[at] |= !found.is_finite();
        }
        scores.each.push(found.into_iter().map(|found| found.unwrap_or(f64::NAN)).collect());
    }
    scores.wrong = (0..answers.len()).filter(|at| wrong[*at]).collect();
    scores.sums.iter_mut().zip(&wrong).filter(|(_, wrong)| **wrong).for_each(|(sum, _)| *sum = f64::NAN);
    Ok(scores)
}

/// A score for each answer, `None` for those that do not count; or an error message.
pub type Numbers = Result<Vec<Option<f64>>, String>;

/// An owned answer that can be sent to another thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    row: Map<String, Value>,
    prompt: String,
    text: String,
    messages: Vec<Value>,
    earned: Option<f64>,
    tokens: usize,
    ended: bool,
}

impl From<RewardInput<'_>> for Answer {
    fn from(of: RewardInput<'_>) -> Answer {
        let RewardInput { row, prompt, text, messages, earned, tokens, ended } = of;
        let (row, messages) = (row.clone(), messages.to_vec());
        Answer { row, prompt: prompt.into(), text: text.into(), messages, earned, tokens, ended }
    }
}

impl Answer {
    /// The view that rewards take.
    pub fn seen(&self) -> RewardInput<'_> {
        let Answer { row, prompt, text, messages, earned, tokens, ended } = self;
        RewardInput { row, prompt, text, messages, earned: *earned, tokens: *tokens, ended: *ended }
    }
}

/// Scores that are still being computed.
#[derive(Debug)]
pub struct PendingScores(pub(super) Receiver<Numbers>);

impl PendingScores {
    /// Waits for the scores.
    ///
    /// # Errors
    /// Those of the reward.
    pub fn wait(self) -> Numbers {
        self.0.recv().unwrap_or_else(|_| Err("panicked; its message is above".into()))
    }
}
