//! What an answer is worth: parts that score it, and their weighted sum.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::apart::{Answer, Coming, Numbers};

/// An answer that is to be scored.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The row that its prompt is from.
    pub row: &'a Map<String, Value>,
    /// The prompt's text.
    pub prompt: &'a str,
    /// Its text, without what ends it; of several turns the last one's.
    pub text: &'a str,
    /// Of an episode: all that was said behind the prompt, `{"role": .., "content": ..}` each.
    pub messages: &'a [Value],
    /// What an environment gave it.
    pub earned: Option<f64>,
    /// Its tokens.
    pub tokens: usize,
    /// It ended by itself.
    pub ended: bool,
}

/// A part of what an answer is worth.
pub trait Reward {
    /// A number for each answer; `None` of one that it says nothing of, which then counts in no sum and in no mean.
    ///
    /// # Errors
    /// In words, naming what to do: a row without what it asks for, a process that fails.
    fn score(&self, answers: &[Answered<'_>]) -> Numbers;

    /// Begins to score answers on another thread, if it can: one that asks the run's device cannot ([`super::apart`]).
    fn begin(&self, _: &Arc<[Answer]>) -> Option<Coming> {
        None
    }
}

/// A part with its name and weight.
pub struct WeightedReward {
    /// Its name in logs.
    pub name: String,
    /// Its weight in the sum.
    pub weight: f64,
    /// What scores.
    pub reward: Box<dyn Reward>,
}

/// The rewards of some answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Of each part, in their order: of each answer, NaN where it says nothing.
    pub each: Vec<Vec<f64>>,
    /// The weighted sums; NaN where no part says anything, or one gave what is not a number.
    pub sums: Vec<f64>,
    /// The answers of which a part gave what is not a number.
    pub wrong: Vec<usize>,
}

/// Scores answers by all parts.
///
/// # Errors
/// As [`Reward::score`], by the part's name.
pub fn score(parts: &[WeightedReward], answers: &[Answered<'_>]) -> Result<Scores, String> {
    score_coming(parts, answers, Vec::new())
}

/// The same, where some numbers are on their way, by part.
///
/// # Errors
/// As [`score`].
pub fn score_coming(
    parts: &[WeightedReward],
    answers: &[Answered<'_>],
    coming: Vec<Option<Coming>>,
) -> Result<Scores, String> {
    let mut coming = coming.into_iter();
    let mut scores = Scores { each: Vec::new(), sums: vec![f64::NAN; answers.len()], wrong: Vec::new() };
    let mut wrong = vec![false; answers.len()];
    for WeightedReward { name, weight, reward } in parts {
        let found = coming.next().flatten().map_or_else(|| reward.score(answers), Coming::wait);
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
