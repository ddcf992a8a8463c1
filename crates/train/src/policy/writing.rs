//! Answers and their rewards: each replica of the model writes and scores a share, and all ranks have all of them.

use fathom_model::{Asked, Weights, Written};
use fathom_text::lessons::Prompt;
use serde::{Deserialize, Serialize};

use super::overlong;
use super::replicas::Replica;
use super::reward::{Answered, score};
use super::rollouts::{Group, Policies, Rolled};
use crate::error::{Error, Result};
use crate::recipe::{NanName, RlTable};
use crate::step::Trainer;

/// An answer as ranks tell each other of it: numbers as their bits.
#[derive(Serialize, Deserialize)]
struct Said {
    written: Wrote,
    /// By part.
    rewards: Vec<u64>,
    sum: u64,
    /// A part gave what is not a number.
    wrong: bool,
}

/// As [`Written`].
#[derive(Serialize, Deserialize)]
struct Wrote {
    ids: Vec<u32>,
    logps: Vec<u32>,
    text: String,
    ended: bool,
}

impl From<&Written> for Wrote {
    fn from(Written { ids, logps, text, ended }: &Written) -> Wrote {
        let logps = logps.iter().map(|logp| logp.to_bits()).collect();
        Wrote { ids: ids.clone(), logps, text: text.clone(), ended: *ended }
    }
}

impl From<Wrote> for Written {
    fn from(Wrote { ids, logps, text, ended }: Wrote) -> Written {
        Written { ids, logps: logps.into_iter().map(f32::from_bits).collect(), text, ended }
    }
}

impl Policies {
    /// Answers to the next prompts, and their rewards. Each replica of the model writes and scores its share of them.
    pub(super) fn write(&mut self, policy: &Trainer) -> Result<Rolled> {
        let drawn = self.draw();
        let replica = Replica::of_writers(&policy.device.mesh);
        // Ranks hand each other what the last update changed, before each goes its own way.
        policy.params.settle(&policy.device);
        let own = self.write_own(policy, &drawn[replica.share(drawn.len())], replica.speaks);
        let said: Vec<Said> = replica.all(&policy.device, own)?;
        let refuse = |message: String| Error::Recipe { key: "rl.reward".into(), message };
        let (most, buffer) = (self.how.max_answer_tokens, self.how.overlong_tokens);
        let mut rolled = Rolled { each: vec![Vec::new(); self.of.rewards.len()], ..Rolled::default() };
        for Said { written, rewards, sum, wrong } in said {
            if wrong && self.how.nan_rewards == NanName::Refuse {
                return Err(refuse(format!(
                    "a reward is not a number, of the answer {:?}; mend it, or leave such answers out (rl.nan_rewards=mask)",
                    written.text
                )));
            }
            rolled.each.iter_mut().zip(rewards).for_each(|(all, bits)| all.push(f64::from_bits(bits)));
            let penalty = self.how.overlong_penalty * overlong(written.ids.len(), most, buffer);
            rolled.sums.push(f64::from_bits(sum) + penalty);
            match rolled.groups.last_mut().filter(|group| group.answers.len() < self.how.answers) {
                Some(group) => group.answers.push(written.into()),
                None => {
                    let (prompt, _) = drawn[rolled.groups.len()];
                    rolled.groups.push(Group { prompt, answers: vec![written.into()] });
                }
            }
        }
        Ok(rolled)
    }

    /// The answers to some prompts; the rank that `speaks` for the ranks that wrote them scores them.
    fn write_own(&self, policy: &Trainer, drawn: &[(usize, u64)], speaks: bool) -> Result<Vec<Said>> {
        let of = &self.of;
        if drawn.is_empty() {
            return Ok(Vec::new());
        }
        let RlTable { answers, max_answer_tokens: max_tokens, temperature, top_k, top_p, .. } = self.how;
        let prompts = drawn.iter().map(|(prompt, _)| of.prompts[*prompt].ids.clone()).collect();
        let seeds = drawn.iter().map(|(_, seed)| *seed).collect();
        let asked = Asked { prompts, seeds, answers, max_tokens, temperature, top_k, top_p };
        let weights = Weights { device: &policy.device, model: &policy.model, params: &policy.params };
        let written = of.rollout.rollout(weights, &asked).map_err(Error::Hook)?;
        if !speaks {
            return Ok(Vec::new());
        }
        let each: Vec<(&Prompt, &Written)> = drawn
            .iter()
            .zip(&written)
            .flat_map(|((prompt, _), all)| all.iter().map(|written| (&of.prompts[*prompt], written)))
            .collect();
        let answered: Vec<Answered<'_>> = each
            .iter()
            .map(|(prompt, written)| Answered {
                row: &prompt.row,
                prompt: &prompt.text,
                text: &written.text,
                tokens: written.ids.len(),
                ended: written.ended,
            })
            .collect();
        let refuse = |message: String| Error::Recipe { key: "rl.reward".into(), message };
        let scores = score(&of.rewards, &answered).map_err(refuse)?;
        let said = |(at, (_, written)): (usize, (&Prompt, &Written))| Said {
            written: written.into(),
            rewards: scores.each.iter().map(|of| of[at].to_bits()).collect(),
            sum: scores.sums[at].to_bits(),
            wrong: scores.wrong.contains(&at),
        };
        Ok(each.into_iter().enumerate().map(said).collect())
    }
}
