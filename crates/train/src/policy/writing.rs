//! Answers and their rewards: each replica of the model writes and scores a share, and all ranks have all of them.

use fathom_text::lessons::Prompt;
use serde::{Deserialize, Serialize};

use super::episodes::{End, Episode};
use super::kept::{Group, Rolled};
use super::overlong;
use super::replicas::{Replica, gathered};
use super::reward::{Answered, score};
use super::rollouts::Policies;
use crate::error::{Error, Result};
use crate::recipe::NanName;
use crate::step::Trainer;

/// An answer as ranks tell each other of it: numbers as their bits.
#[derive(Serialize, Deserialize)]
struct Said {
    episode: Episode,
    /// By part.
    rewards: Vec<u64>,
    sum: u64,
    /// A part gave what is not a number.
    wrong: bool,
}

impl Policies {
    /// Answers to the next prompts, and their rewards. Each replica of the model writes and scores its share of them.
    pub(super) fn write(&mut self, policy: &Trainer) -> Result<Rolled> {
        let drawn = self.draw();
        let replica = Replica::of_writers(&policy.device.mesh);
        // Ranks hand each other what the last update changed, before each goes its own way.
        policy.params.settle(&policy.device);
        let weights = gathered(policy, &self.asking.ranks);
        let own = self.play(policy, &drawn, replica);
        drop(weights);
        let share = &drawn[replica.share(drawn.len())];
        let own = own.and_then(|own| if replica.speaks { self.scored(share, own) } else { Ok(Vec::new()) });
        let said: Vec<Said> = replica.all(&policy.device, own)?;
        let refuse = |message: String| Error::Recipe { key: "rl.reward".into(), message };
        let (most, buffer) = (self.how.max_answer_tokens, self.how.overlong_tokens);
        let mut rolled = Rolled { each: vec![Vec::new(); self.of.rewards.len()], ..Rolled::default() };
        for Said { episode, rewards, sum, wrong } in said {
            if wrong && self.how.nan_rewards == NanName::Refuse {
                return Err(refuse(format!(
                    "a reward is not a number, of the answer {:?}; mend it, or leave such answers out (rl.nan_rewards=mask)",
                    episode.text
                )));
            }
            rolled.each.iter_mut().zip(rewards).for_each(|(all, bits)| all.push(f64::from_bits(bits)));
            let penalty = self.how.overlong_penalty * overlong(episode.logps.len(), most, buffer);
            rolled.sums.push(f64::from_bits(sum) + penalty);
            match rolled.groups.last_mut().filter(|group| group.answers.len() < self.how.answers) {
                Some(group) => group.answers.push(episode),
                None => {
                    let (prompt, _) = drawn[rolled.groups.len()];
                    rolled.groups.push(Group { prompt, answers: vec![episode] });
                }
            }
        }
        Ok(rolled)
    }

    /// What the answers to some prompts are worth.
    fn scored(&self, drawn: &[(usize, u64)], episodes: Vec<Episode>) -> Result<Vec<Said>> {
        let of = &self.of;
        let each =
            drawn.iter().flat_map(|(prompt, _)| std::iter::repeat_n(&of.prompts[*prompt], self.how.answers));
        let answered = |(prompt, episode)| {
            let (prompt, episode): (&Prompt, &Episode) = (prompt, episode);
            Answered {
                row: &prompt.row,
                prompt: &prompt.text,
                text: &episode.text,
                messages: &episode.messages,
                earned: episode.earned(),
                tokens: episode.logps.len(),
                ended: episode.ended,
            }
        };
        let answered: Vec<Answered<'_>> = each.zip(&episodes).map(answered).collect();
        let refuse = |message: String| Error::Recipe { key: "rl.reward".into(), message };
        let scores = score(&of.rewards, &answered).map_err(refuse)?;
        // An episode without a reply is given what the recipe says, or counts nowhere.
        let unscored = of.playing.as_ref().is_some_and(|playing| playing.failed_reward.is_none());
        let said = |(at, episode): (usize, Episode)| {
            let out = unscored && episode.end == Some(End::Failed);
            let number = |number: f64| if out { f64::NAN } else { number }.to_bits();
            Said {
                rewards: scores.each.iter().map(|of| number(of[at])).collect(),
                sum: number(scores.sums[at]),
                wrong: scores.wrong.contains(&at) && !out,
                episode,
            }
        };
        Ok(episodes.into_iter().enumerate().map(said).collect())
    }
}
