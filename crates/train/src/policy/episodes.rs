//! Episodes: a policy's answers alternating with an environment's replies. Tokens are appended as they were sampled;
//! text is never tokenized again.

use std::ops::Range;

use fathom_base::choice;
use fathom_model::{RolloutAnswer, RolloutRequest};
use fathom_text::Rng;
use fathom_text::chat::{Conversation, Follow, Message};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::environment::{Environment, Reply, Turn};
use super::replicas::Replica;
use super::rollouts::Policies;
use crate::error::{Error, Result};
use crate::recipe::RlTable;
use crate::step::Trainer;

/// An environment, and how its replies become tokens.
pub struct Playing {
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
        /// It has had all its turns (`rl.turns`).
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
    fn write(&mut self, RolloutAnswer { ids, logps, kept, text, ended }: RolloutAnswer) {
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
struct ReplyRecord {
    text: Option<String>,
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

fn refuse(message: String) -> Error {
    Error::Recipe { key: "environment.command".into(), message }
}

impl Policies {
    /// This replica's episodes for some prompts, group by group. All ranks call this together.
    pub(super) fn play(
        &self,
        policy: &Trainer,
        drawn: &[(usize, u64)],
        replica: Replica,
    ) -> Result<Vec<Episode>> {
        let share = replica.share(drawn.len());
        let (drawn, answers) = (&drawn[share.clone()], self.how.answers);
        let mut own = self.first_answers(policy, drawn);
        let Some(playing) = &self.of.playing else { return own };
        for turn in 0..self.how.turns.max(1) {
            let (episodes, said) = match own {
                Ok(episodes) if replica.speaks => {
                    let said = self.replies(playing, drawn, &episodes);
                    (episodes, said)
                }
                Ok(episodes) => (episodes, Ok(Vec::new())),
                Err(error) => (Vec::new(), Err(error)),
            };
            let heard: Vec<ReplyRecord> = replica.all(&policy.device, said)?;
            let over = heard.iter().all(|heard| heard.text.is_none());
            let own_heard = heard[share.start * answers..share.end * answers].to_vec();
            own = self.go_on(policy, drawn, (episodes, own_heard), turn);
            if over {
                break;
            }
        }
        own
    }

    /// The first answer of each episode.
    fn first_answers(&self, policy: &Trainer, drawn: &[(usize, u64)]) -> Result<Vec<Episode>> {
        let prompts = drawn.iter().map(|(prompt, _)| self.of.prompts[*prompt].ids.clone()).collect();
        let seeds = drawn.iter().map(|(_, seed)| *seed).collect();
        let written = self.ask(policy, prompts, seeds, self.how.answers)?;
        let episode = |written: RolloutAnswer| {
            let mut episode = Episode::default();
            episode.write(written);
            episode
        };
        Ok(written.into_iter().flatten().map(episode).collect())
    }

    /// The policy's answers to some prompts.
    fn ask(
        &self,
        policy: &Trainer,
        prompts: Vec<Vec<u32>>,
        seeds: Vec<u64>,
        answers: usize,
    ) -> Result<Vec<Vec<RolloutAnswer>>> {
        if prompts.is_empty() {
            return Ok(Vec::new());
        }
        let RlTable { max_answer_tokens: max_tokens, temperature, top_k, top_p, min_p, .. } = self.how;
        let kept = self.how.keeps();
        let asked =
            RolloutRequest { prompts, seeds, answers, max_tokens, temperature, top_k, top_p, min_p, kept };
        let weights = policy.view();
        self.of.rollout.rollout(weights, &asked).map_err(Error::Hook)
    }

    /// The environment's replies; an episode that is over gets an empty one.
    fn replies(
        &self,
        playing: &Playing,
        drawn: &[(usize, u64)],
        episodes: &[Episode],
    ) -> Result<Vec<ReplyRecord>> {
        let going: Vec<usize> = (0..episodes.len()).filter(|at| episodes[*at].end.is_none()).collect();
        let turn = |at: &usize| {
            let (episode, prompt) = (&episodes[*at], &self.of.prompts[drawn[at / self.how.answers].0]);
            let before = episode.heard.last().map_or(0, |heard| heard.end);
            Turn {
                row: &prompt.row,
                prompt: &prompt.text,
                messages: &episode.messages,
                text: &episode.text,
                turn: episode.turns() - 1,
                episode: *at,
                tokens: episode.ids.len() - before,
                ended: episode.ended,
            }
        };
        let turns: Vec<Turn<'_>> = going.iter().map(turn).collect();
        let mut said = vec![ReplyRecord::default(); episodes.len()];
        if turns.is_empty() {
            return Ok(said);
        }
        let replies = playing.environment.reply(&turns).map_err(refuse)?;
        if replies.len() != turns.len() {
            return Err(refuse(format!("gave {} replies to {} answers", replies.len(), turns.len())));
        }
        going.into_iter().zip(replies).for_each(|(at, reply)| said[at] = reply.into());
        Ok(said)
    }

    /// Appends replies, and continues the episodes that have room for another answer.
    fn go_on(
        &self,
        policy: &Trainer,
        drawn: &[(usize, u64)],
        (mut episodes, heard): (Vec<Episode>, Vec<ReplyRecord>),
        turn: usize,
    ) -> Result<Vec<Episode>> {
        let Some(playing) = &self.of.playing else { return Ok(episodes) };
        let (mut prompts, mut seeds, mut going) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (episode, heard)) in episodes.iter_mut().zip(heard).enumerate() {
            if episode.end.is_some() {
                continue;
            }
            let (prompt, seed) = drawn[at / self.how.answers];
            let prompt = &self.of.prompts[prompt];
            let before = prompt.ids.len() + self.how.max_answer_tokens;
            let last = turn + 1 >= self.how.turns;
            episode.hear(
                playing,
                prompt.conversation.as_ref(),
                heard,
                (last, self.seq_tokens.saturating_sub(before)),
            )?;
            if episode.end.is_none() {
                prompts.push([&prompt.ids[..], &episode.ids].concat());
                let answer = (at % self.how.answers) as u64;
                seeds.push(Rng::keyed(&[seed, answer, turn as u64 + 1]).next_u64());
                going.push(at);
            }
        }
        let written = self.ask(policy, prompts, seeds, 1)?;
        for (at, written) in going.into_iter().zip(written.into_iter().flatten()) {
            episodes[at].write(written);
        }
        Ok(episodes)
    }
}

impl Episode {
    /// Appends a reply's tokens, or ends the episode. `room` is the maximum number of tokens after the prompt that
    /// leaves room for another answer.
    fn hear(
        &mut self,
        playing: &Playing,
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
