//! What a policy's answers are written to: tools that it calls, a user who answers back, a game. An environment sees each answer with
//! the conversation before it, and says what follows, or that the episode is over.

use serde_json::{Map, Value};

use super::reward::{Answered, Reward};

/// An answer that an environment sees.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The row that the episode's prompt is from.
    pub row: &'a Map<String, Value>,
    /// The prompt's text.
    pub prompt: &'a str,
    /// What was said since, `{"role": .., "content": ..}` each; the answer is the last.
    pub messages: &'a [Value],
    /// The answer's text, without what ends it.
    pub text: &'a str,
    /// Its number, from 0.
    pub turn: usize,
    /// The episode's among those that are played together.
    pub episode: usize,
    /// Its tokens.
    pub tokens: usize,
    /// It ended by itself; one that did not is the episode's last.
    pub ended: bool,
}

/// What an environment says of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// What follows it; none ends the episode.
    pub text: Option<String>,
    /// What the answer is worth, besides what the episode is.
    pub reward: Option<f64>,
}

/// Says what follows an answer.
///
/// What it says depends on what it is shown alone: a run that goes on from a checkpoint asks another one, and episodes are shown in any
/// number together.
pub trait Environment {
    /// A reply to each answer, in their order, or in words why there is none, which ends that episode and no other.
    ///
    /// # Errors
    /// In words: what no episode can do without, as a program that cannot be started.
    fn reply(&self, turns: &[Turn<'_>]) -> Result<Vec<Result<Reply, String>>, String>;
}

/// What an environment gave an episode, as a part of its reward.
pub struct Earned;

impl Reward for Earned {
    fn score(&self, answers: &[Answered<'_>]) -> Result<Vec<Option<f64>>, String> {
        Ok(answers.iter().map(|answer| answer.earned).collect())
    }
}
