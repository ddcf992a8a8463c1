//! An episode: its tokens, its messages and how it ended.

use std::ops::Range;

use fathom_base::choice;
use fathom_model::RolloutAnswer;
use fathom_text::chat::{Conversation, Follow, Message};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::environment::{Environment, Reply};
use crate::error::{Error, Result};

/// An environment, and how its replies become tokens.
pub struct EpisodePlayer {
    /// The environment.
    pub environment: Box<dyn Environment>,
    /// Converts replies to tokens.
    pub follow: Follow,
    /// Weight of its rewards in an answer's total.
    pub weight: f64,
    /// Reward of an episode whose environment failed; `None` excludes it from its group and from the loss.
    pub failed_reward: Option<f64>,
}

choice! {
    /// Why an episode is over.
    pub(super) enum End {
        /// The environment said so.
        Environment = "environment",
        /// All its turns are used (`rl.turns`).
        Turns = "turns",
        /// There is no room for another answer.
        Room = "room",
        /// An answer did not end by itself.
        Truncated = "truncated",
        /// The environment gave no reply.
        Failed = "failed",
    }
}

/// Everything after a prompt: the policy's tokens and the environment's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Episode {
    /// Tokens after the prompt.
    pub ids: Vec<u32>,
    /// Ranges of tokens that the environment wrote.
    pub heard: Vec<Range<usize>>,
    /// Log-probability of each of the other tokens.
    #[serde(with = "bits")]
    pub logps: Vec<f32>,
    /// Bit masks of the tokens that each was sampled from, concatenated; empty: all.
    #[serde(default, with = "super::kept::text", skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<u8>,
    /// The messages, with their roles.
    pub messages: Vec<Value>,
    /// The last answer's text.
    pub text: String,
    /// True if it ended by itself.
    pub ended: bool,
    /// The environment's rewards, as number of tokens written before and bits of the reward.
    pub(super) earned: Vec<(usize, u64)>,
    /// The reason why it is over; `None` for a single answer without an environment.
    pub end: Option<End>,
}

/// Serializes numbers as their bits, so that all ranks have the same values.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(numbers: &[f32], to: S) -> Result<S::Ok, S::Error> {
        numbers.iter().map(|number| number.to_bits()).collect::<Vec<u32>>().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        Ok(Vec::<u32>::deserialize(from)?.into_iter().map(f32::from_bits).collect())
    }
}

impl Episode {
    /// Appends an answer.
    pub(crate) fn write(&mut self, RolloutAnswer { ids, logps, kept, text, ended }: RolloutAnswer) {
        self.ids.extend(ids);
        self.logps.extend(logps);
        self.kept.extend(kept);
        self.messages.push(json!({"role": "assistant", "content": text}));
        (self.text, self.ended) = (text, ended);
    }

    /// Number of answers.
    pub fn turns(&self) -> usize {
        self.messages.iter().filter(|message| message["role"] == "assistant").count()
    }

    /// The environment's rewards, with the number of tokens written before each.
    pub fn earnings(&self) -> impl Iterator<Item = (usize, f64)> {
        self.earned.iter().map(|(at, bits)| (*at, f64::from_bits(*bits)))
    }

    /// Sum of the environment's rewards, if there are any.
    pub fn earned(&self) -> Option<f64> {
        self.earnings().map(|(_, reward)| reward).reduce(|a, b| a + b)
    }

    /// All messages as readable text.
    pub fn transcript(&self) -> String {
        let one = |message: &Value| {
            let content = message["content"].as_str().unwrap_or_default();
            match message["role"].as_str() {
                Some("assistant") | None => content.to_string(),
                Some(role) => format!("\n[{role}] {content}\n"),
            }
        };
        self.messages.iter().map(one).collect()
    }
}

/// A reply as ranks exchange it; empty for an episode that is over.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ReplyRecord {
    pub(super) text: Option<String>,
    reward: Option<u64>,
    failed: Option<String>,
}

impl From<std::result::Result<Reply, String>> for ReplyRecord {
    fn from(reply: std::result::Result<Reply, String>) -> ReplyRecord {
        match reply {
            Ok(Reply { text, reward }) => {
                ReplyRecord { text, reward: reward.map(f64::to_bits), failed: None }
            }
            Err(why) => ReplyRecord { failed: Some(why), ..ReplyRecord::default() },
        }
    }
}

pub(super) fn refuse(message: String) -> Error {
    Error::Recipe { key: "environment.command".into(), message }
}

impl Episode {
    /// Appends a reply's tokens, or ends the episode. `room` is the maximum number of tokens after the prompt that
    /// leaves room for another answer.
    pub(super) fn hear(
        &mut self,
        playing: &EpisodePlayer,
        prompt: Option<&Conversation>,
        heard: ReplyRecord,
        (last, room): (bool, usize),
    ) -> Result<()> {
        let failed_reward = playing.failed_reward.filter(|_| heard.failed.is_some());
        if let Some(bits) = heard.reward.or(failed_reward.map(f64::to_bits)) {
            self.earned.push((self.logps.len(), bits));
        }
        let mut end = None;
        if let Some(why) = heard.failed {
            self.messages.push(json!({"role": "no reply", "content": why}));
            end = Some(End::Failed);
        } else if !self.ended {
            end = Some(End::Truncated);
        } else if heard.text.is_none() {
            end = Some(End::Environment);
        } else if last {
            end = Some(End::Turns);
        }
        if let (None, Some(text)) = (end, &heard.text) {
            let so_far = prompt.map(|prompt| {
                let said = &self.messages[..self.messages.len() - 1];
                let said = said.iter().map(|said| Message { said: said.clone(), weight: 1.0 });
                let messages = prompt.messages.iter().cloned().chain(said).collect();
                Conversation { messages, ..prompt.clone() }
            });
            let answer = (self.text.as_str(), self.ids.last().copied());
            let tokens = playing.follow.tokens(so_far.as_ref(), answer, text).map_err(refuse)?;
            if self.ids.len() + tokens.len() > room {
                end = Some(End::Room);
            } else {
                self.heard.push(self.ids.len()..self.ids.len() + tokens.len());
                self.ids.extend(tokens);
                self.messages.push(json!({"role": playing.follow.role, "content": text}));
            }
        }
        self.end = end;
        Ok(())
    }
}
