//! Environments that respond to a policy's answers: tools that it calls, a user who replies, a game. An environment
//! receives each answer with the conversation before it, and replies or ends the episode.

use serde_json::{Map, Value};

use super::reward::{Reward, RewardInput};

/// An answer passed to an environment.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The row with the episode's prompt.
    pub row: &'a Map<String, Value>,
    /// The prompt's text.
    pub prompt: &'a str,
    /// Messages after the prompt, each `{"role": .., "content": ..}`; the answer is the last.
    pub messages: &'a [Value],
    /// The answer's text without its end token.
    pub text: &'a str,
    /// Index of the turn, from 0.
    pub turn: usize,
    /// Index of the episode among those played together.
    pub episode: usize,
    /// Number of tokens of the answer.
    pub tokens: usize,
    /// True if the answer ended by itself; one that did not is the last of its episode.
    pub ended: bool,
}

/// An environment's response to an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// Text that follows the answer; `None` ends the episode.
    pub text: Option<String>,
    /// Reward of this answer, in addition to the episode's.
    pub reward: Option<f64>,
}

/// Replies to answers.
///
/// Replies must depend only on the arguments: a run resumed from a checkpoint uses another instance, and episodes may
/// be passed in any grouping.
pub trait Environment {
    /// A reply to each answer, in order, or a message why there is none, which ends only that episode.
    ///
    /// # Errors
    /// A message, if no episode can continue, for example because a program cannot be started.
    fn reply(&self, turns: &[Turn<'_>]) -> Result<Vec<Result<Reply, String>>, String>;
}

/// A reward that returns the sum of the environment's rewards for an episode.
pub struct EpisodeReward;

impl Reward for EpisodeReward {
    fn score(&self, answers: &[RewardInput<'_>]) -> Result<Vec<Option<f64>>, String> {
        Ok(answers.iter().map(|answer| answer.earned).collect())
    }
}
