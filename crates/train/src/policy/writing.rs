//! Answers and their rewards: each replica of the model writes and scores a share, and all ranks receive all of them.
//! The rewards of a rollout written ahead are needed when it is used; rewards that can run on another thread
//! ([`super::apart`]) compute them until then.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::episode::{End, Episode};
use super::kept::{Group, ScoredRollout};
use super::overlong;
use super::policies::Policies;
use super::replicas::{Replica, gathered};
use super::reward::{Answer, PendingScores, RewardInput, score_coming};
use crate::error::{Error, Result};
use crate::recipe::NanName;
use crate::step::Trainer;

/// An answer's rewards as ranks exchange them: numbers as their bits.
#[derive(Serialize, Deserialize)]
struct Worth {
    /// By reward.
    rewards: Vec<u64>,
    sum: u64,
    /// True if a reward returned a number that is not finite.
    wrong: bool,
}

fn refuse(message: String) -> Error {
    Error::Recipe { key: "rl.reward".into(), message }
}

impl Policies {
    /// Writes answers to the next prompts, and scores them. Each replica of the model does its share.
    pub(super) fn write(&mut self, policy: &Trainer) -> Result<ScoredRollout> {
        let (replica, own) = self.own(policy);
        let own = own.and_then(|groups| {
            let worths = self.worths(&groups, Vec::new())?;
            Ok(groups.into_iter().zip(worths).collect())
        });
        let all: Vec<(Group, Vec<Worth>)> = replica.all(&policy.device, own)?;
        let (groups, worths) = all.into_iter().unzip();
        self.worth(ScoredRollout { groups, ..ScoredRollout::default() }, worths)
    }

    /// Writes answers to the next prompts and starts the rewards that can run on another thread.
    pub(super) fn write_ahead(&mut self, policy: &Trainer) -> Result<ScoredRollout> {
        let (replica, own) = self.own(policy);
        self.coming = own.as_ref().map_or_else(|_| Vec::new(), |groups| self.begin(groups));
        Ok(ScoredRollout { groups: replica.all(&policy.device, own)?, ..ScoredRollout::default() })
    }

    /// Scores answers that were written ahead, if that is not done yet; some scores may be in progress, by reward.
    pub(super) fn complete(
        &self,
        policy: &Trainer,
        rolled: ScoredRollout,
        coming: Vec<Option<PendingScores>>,
    ) -> Result<ScoredRollout> {
        if !rolled.sums.is_empty() {
            return Ok(rolled);
        }
        let started = Instant::now();
        let replica = Replica::of_writers(&policy.device.mesh);
        let share = &rolled.groups[replica.share(rolled.groups.len())];
        let own = if replica.speaks { self.worths(share, coming) } else { Ok(Vec::new()) };
        let worths = replica.all(&policy.device, own)?;
        let mut rolled = self.worth(rolled, worths)?;
        rolled.seen.insert("rewards_wait_s".into(), started.elapsed().as_secs_f64());
        Ok(rolled)
    }

    /// This replica's answers to the next prompts, on the rank that reports them.
    fn own(&mut self, policy: &Trainer) -> (Replica, Result<Vec<Group>>) {
        let drawn = self.draw();
        let replica = Replica::of_writers(&policy.device.mesh);
        // Ranks exchange the last update's weights before they proceed at their own pace.
        policy.params.settle(&policy.device);
        let weights = gathered(policy, &self.asking.ranks);
        let own = self.play(policy, &drawn, replica);
        drop(weights);
        let share = &drawn[replica.share(drawn.len())];
        let own = own.map(|episodes| {
            let mut episodes = episodes.into_iter();
            let group = |(prompt, _): &(usize, u64)| Group {
                prompt: *prompt,
                answers: episodes.by_ref().take(self.how.answers).collect(),
            };
            if replica.speaks { share.iter().map(group).collect() } else { Vec::new() }
        });
        (replica, own)
    }

    /// The answers as rewards take them.
    fn answered<'b>(&'b self, groups: &'b [Group]) -> Vec<RewardInput<'b>> {
        let of = |(prompt, episode): (usize, &'b Episode)| {
            let prompt = &self.of.prompts[prompt];
            RewardInput {
                row: &prompt.row,
                prompt: &prompt.text,
                text: &episode.text,
                messages: &episode.messages,
                earned: episode.earned(),
                tokens: episode.logps.len(),
                ended: episode.ended,
            }
        };
        groups.iter().flat_map(|group| group.answers.iter().map(|it| (group.prompt, it))).map(of).collect()
    }

    /// Starts the rewards that can run on another thread.
    fn begin(&self, groups: &[Group]) -> Vec<Option<PendingScores>> {
        if groups.is_empty() {
            return Vec::new();
        }
        let answers: Arc<[Answer]> = self.answered(groups).into_iter().map(Answer::from).collect();
        self.of.rewards.iter().map(|part| part.reward.begin(&answers)).collect()
    }

    /// Scores the answers of some groups.
    fn worths(&self, groups: &[Group], coming: Vec<Option<PendingScores>>) -> Result<Vec<Vec<Worth>>> {
        let of = &self.of;
        let scores = score_coming(&of.rewards, &self.answered(groups), coming).map_err(refuse)?;
        // An episode without a reply gets the recipe's reward, or is excluded.
        let unscored = of.playing.as_ref().is_some_and(|playing| playing.failed_reward.is_none());
        let worth = |(episode, at): (&Episode, usize)| {
            let out = unscored && episode.end == Some(End::Failed);
            let number = |number: f64| if out { f64::NAN } else { number }.to_bits();
            Worth {
                rewards: scores.each.iter().map(|of| number(of[at])).collect(),
                sum: number(scores.sums[at]),
                wrong: scores.wrong.contains(&at) && !out,
            }
        };
        let mut numbers = 0..;
        let of_group = |group: &Group| group.answers.iter().zip(numbers.by_ref()).map(worth).collect();
        Ok(groups.iter().map(of_group).collect())
    }

    /// Adds the exchanged rewards to the answers.
    fn worth(&self, mut rolled: ScoredRollout, worths: Vec<Vec<Worth>>) -> Result<ScoredRollout> {
        let (most, buffer) = (self.how.max_answer_tokens, self.how.overlong_tokens);
        rolled.each = vec![Vec::new(); self.of.rewards.len()];
        let episodes = rolled.groups.iter().flat_map(|group| &group.answers);
        for (episode, Worth { rewards, sum, wrong }) in episodes.zip(worths.into_iter().flatten()) {
            if wrong && self.how.nan_rewards == NanName::Refuse {
                return Err(refuse(format!(
                    "a reward is not a number, of the answer {:?}; mend it, or leave such answers out (rl.nan_rewards=mask)",
                    episode.text
                )));
            }
            rolled.each.iter_mut().zip(rewards).for_each(|(all, bits)| all.push(f64::from_bits(bits)));
            let penalty = self.how.overlong_penalty * overlong(episode.logps.len(), most, buffer);
            rolled.sums.push(f64::from_bits(sum) + penalty);
        }
        Ok(rolled)
    }
}
