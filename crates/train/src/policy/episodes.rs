//! Episodes: a policy's answers alternating with an environment's replies. Tokens are appended as they were sampled;
//! text is never tokenized again.

use fathom_model::{RolloutAnswer, RolloutRequest};
use fathom_text::Rng;

use super::environment::Turn;
use super::episode::{Episode, EpisodePlayer, ReplyRecord, refuse};
use super::policies::Policies;
use super::replicas::Replica;
use crate::error::{Error, Result};
use crate::recipe::RlTable;
use crate::step::Trainer;

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
        playing: &EpisodePlayer,
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
