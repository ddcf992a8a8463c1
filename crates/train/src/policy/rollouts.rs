//! The source of a policy's own answers: prompts in a seeded order, groups of answers written with the weights being
//! trained, their rewards and advantages, packed into micro-batches.
//!
//! A step's data depends on the recipe, the number of prompts drawn before, and the weights. A rollout shared by
//! several steps is kept in the cursor between them, as is one written ahead (`rl.behind`), so that a run resumed from
//! a checkpoint has the same answers.

use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use fathom_tensor::mesh::Mesh;
use fathom_text::Rng;
use fathom_text::loader::Cursor;

use super::episode::Episode;
use super::importance::weigh;
use super::kept::{Group, ScoredRollout, UsedRollout, held, kept};
use super::pack::{Doc, Room, bins, nothing, stream};
use super::policies::{Policies, RolloutInputs};
use super::replicas::{dealt, rings};
use super::{RolloutRewards, advantages, gae, mean_and_deviation, whitened};
use crate::error::{Error, Result};
use crate::micro_batch::MicroBatch;
use crate::policy::AdvantageName;
use crate::recipe::{KlIn, PolicyName, Recipe};
use crate::source::{OpenedSource, Shape, Source, SourceReport, Sources, StepShare, fill};
use crate::stage;
use crate::step::Trainer;

/// Keys of the two kinds of random numbers, in addition to the run's seed.
const ORDER: u64 = 1;
const DRAWS: u64 = 2;

/// Creates the sources of a run that learns from rewards.
#[derive(Clone)]
pub struct Rollouts(pub Rc<RolloutInputs>);

impl Sources for Rollouts {
    fn open(&self, recipe: &Recipe, index: usize, _: StepShare, cursor: Option<&Cursor>) -> OpenedSource {
        let shape = Shape::new(recipe, index);
        // Padding of a stream counts as a document.
        let docs = shape.docs.saturating_sub(usize::from(shape.one_length)).max(1);
        let mut source = Policies {
            of: self.0.clone(),
            how: recipe.rl.clone(),
            room: Room { tokens: shape.samples * shape.seq_tokens, docs },
            seq_tokens: shape.seq_tokens,
            filled: shape.one_length.then_some(shape.seq_tokens),
            asking: stage::in_step(recipe, index)?,
            seed: recipe.run.seed.wrapping_add(index as u64),
            shuffle: recipe.data.shuffle,
            cursor: Cursor {
                sample: 0,
                fingerprint: self.0.fingerprint.clone(),
                sources: Vec::new(),
                held: None,
            },
            pending: None,
            next: None,
            coming: Vec::new(),
            reported: SourceReport::default(),
            wait_s: 0.0,
        };
        if let Some(cursor) = cursor {
            source.resume(cursor)?;
        }
        Ok(Box::new(source))
    }

    /// A pass uses each prompt once; the rest at its end that is too small for a rollout is skipped, as in TRL.
    fn steps(&self, recipe: &Recipe, index: usize) -> Result<Option<u64>> {
        let Some(epochs) = recipe.stage[index].epochs else { return Ok(None) };
        let rollouts = (self.0.prompts.len() / recipe.rl.prompts.max(1)).max(1) as u64;
        Ok(Some(epochs * rollouts * recipe.rl.steps() as u64))
    }

    fn round(&self, recipe: &Recipe) -> u64 {
        recipe.rl.steps() as u64
    }
}

impl Source for Policies {
    fn step(&mut self, policy: &Trainer) -> Result<Vec<MicroBatch>> {
        let started = Instant::now();
        if self.pending.is_none() {
            self.roll(policy)?;
        }
        let micro_batches = self.share_out(&policy.device.mesh);
        self.wait_s += started.elapsed().as_secs_f64();
        Ok(micro_batches)
    }

    fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    fn wait_s(&self) -> f64 {
        self.wait_s
    }

    fn reported(&mut self) -> SourceReport {
        std::mem::take(&mut self.reported)
    }
}

impl Policies {
    /// Resumes from a saved position.
    fn resume(&mut self, cursor: &Cursor) -> Result<()> {
        let refuse = |message: String| Error::Recipe { key: "data.paths".into(), message };
        if cursor.fingerprint != self.cursor.fingerprint {
            let message = "holds other prompts than those that the run has learned from; give back what was there, or begin in \
                           another folder (run.out=FOLDER)";
            return Err(refuse(message.into()));
        }
        let damaged =
            |error: serde_json::Error| refuse(format!("the checkpoint's rollout is damaged: {error}"));
        (self.pending, self.next) = kept(cursor.held.as_ref()).map_err(damaged)?;
        self.cursor = cursor.clone();
        Ok(())
    }

    /// This rank's micro-batches of the rollout's next step, the same number on each rank.
    fn share_out(&mut self, mesh: &Mesh) -> Vec<MicroBatch> {
        let Some(pending) = &mut self.pending else { return vec![nothing()] };
        let parts = self.how.minibatches.max(1);
        let part = pending.made % parts;
        let fresh = pending.made == 0 && !pending.corrected;
        let all = pending.groups.len();
        let docs: Vec<&Doc> =
            pending.groups[part * all / parts..(part + 1) * all / parts].iter().flatten().collect();
        let of = |bin: Vec<usize>| match bin[..] {
            [] => nothing(),
            _ => stream(&bin.iter().map(|at| docs[*at]).collect::<Vec<_>>(), fresh),
        };
        let own = dealt(bins(&docs, self.room), mesh, &self.asking.ranks);
        let micro_batches: Vec<MicroBatch> = own.into_iter().map(of).collect();
        pending.made += 1;
        if pending.made == self.how.steps() {
            self.pending = None;
        }
        self.cursor.held = held(self.pending.as_ref(), self.next.as_ref());
        micro_batches.into_iter().map(|micro| self.whole(micro)).collect()
    }

    /// The streams of a range of documents, by index.
    pub(super) fn streams(&self, docs: &[&Doc], of: Range<usize>) -> Vec<Vec<usize>> {
        let number = |bin: Vec<usize>| bin.into_iter().map(|at| of.start + at).collect();
        bins(&docs[of.clone()], self.room).into_iter().map(number).collect()
    }

    /// This rank's streams of all steps of a rollout, by document index, so that evaluation passes use the same streams
    /// as steps.
    pub(super) fn streams_of_steps(&self, docs: &[Doc], mesh: &Mesh) -> Vec<Vec<usize>> {
        let (group, parts) = (self.how.answers.max(1), self.how.minibatches.max(1));
        let (all, groups) = (docs.iter().collect::<Vec<_>>(), docs.len() / group);
        let of = |part: usize| part * groups / parts * group..(part + 1) * groups / parts * group;
        (0..parts).flat_map(|part| dealt(self.streams(&all, of(part)), mesh, &self.asking.ranks)).collect()
    }

    /// Pads a stream to the length that the ranks sharing it expect.
    pub(super) fn whole(&self, mut micro: MicroBatch) -> MicroBatch {
        if let Some(seq_tokens) = self.filled {
            fill(&mut micro, self.room.tokens, seq_tokens);
        }
        micro
    }

    /// Indices and seeds of the next prompts: each pass has all prompts once, in an order of its own.
    pub(super) fn draw(&mut self) -> Vec<(usize, u64)> {
        let all = self.of.prompts.len() as u64;
        let mut order: Option<(u64, Vec<usize>)> = None;
        let mut drawn = Vec::new();
        for number in self.cursor.sample..self.cursor.sample + self.how.prompts as u64 {
            let (pass, at) = (number / all, (number % all) as usize);
            if order.as_ref().is_none_or(|(of, _)| *of != pass) {
                let mut prompts: Vec<usize> = (0..all as usize).collect();
                if self.shuffle {
                    Rng::keyed(&[self.seed, ORDER, pass]).shuffle(&mut prompts);
                }
                order = Some((pass, prompts));
            }
            let prompt = order.as_ref().map_or(0, |(_, prompts)| prompts[at]);
            drawn.push((prompt, Rng::keyed(&[self.seed, DRAWS, number]).next_u64()));
        }
        self.cursor.sample += self.how.prompts as u64;
        drawn
    }

    /// Answers with their rewards; with dynamic sampling, until there are enough groups whose rewards differ.
    fn answers(&mut self, policy: &Trainer) -> Result<ScoredRollout> {
        let (mut all, mut dropped, mut asked) = (ScoredRollout::default(), 0, 0);
        let rounds = if self.how.dynamic_sampling { self.how.dynamic_rounds.max(1) } else { 1 };
        for _ in 0..rounds {
            let rolled = self.write(policy)?;
            asked += rolled.groups.len();
            let group = self.how.answers;
            for (at, answers) in rolled.groups.into_iter().enumerate() {
                let range = at * group..(at + 1) * group;
                let [_, deviation] = mean_and_deviation(rolled.sums[range.clone()].iter().copied());
                if self.how.dynamic_sampling && (deviation == 0.0 || all.groups.len() == self.how.prompts) {
                    dropped += usize::from(deviation == 0.0);
                    continue;
                }
                all.groups.push(answers);
                all.sums.extend(&rolled.sums[range.clone()]);
                all.each.resize(rolled.each.len(), Vec::new());
                for (to, from) in all.each.iter_mut().zip(&rolled.each) {
                    to.extend(&from[range.clone()]);
                }
            }
            if all.groups.len() == self.how.prompts {
                break;
            }
        }
        if self.how.dynamic_sampling {
            all.seen.insert("dynamic_sampling/dropped".into(), dropped as f64 / asked.max(1) as f64);
            all.seen.insert("dynamic_sampling/groups".into(), all.groups.len() as f64);
        }
        Ok(all)
    }

    /// The next rollout; with `rl.behind` also the answers of the one after it, by the weights that the coming steps
    /// change.
    fn roll(&mut self, policy: &Trainer) -> Result<()> {
        let started = Instant::now();
        policy.device.pool.reset_peak();
        let (rolled, late) = match self.next.take() {
            Some(rolled) => (rolled, true),
            None => (self.ahead(policy)?, false),
        };
        let coming = std::mem::take(&mut self.coming);
        if self.how.behind > 0 {
            self.next = Some(self.ahead(policy)?);
        }
        let rolled = self.complete(policy, rolled, coming)?;
        self.pending = Some(self.learnable(policy, rolled, late)?);
        let metrics = &mut self.reported.metrics;
        metrics.insert("rollout_s".into(), started.elapsed().as_secs_f64());
        metrics.insert("rollout_peak_bytes".into(), policy.device.pool.usage().peak_live as f64);
        Ok(())
    }

    /// The next answers, without rewards if other work can be done before they are needed.
    fn ahead(&mut self, policy: &Trainer) -> Result<ScoredRollout> {
        // Dynamic sampling needs the rewards to decide which groups to keep.
        if self.how.behind > 0 && !self.how.dynamic_sampling {
            self.write_ahead(policy)
        } else {
            self.answers(policy)
        }
    }

    /// Documents of answers, with their advantages; `late` marks answers by earlier weights.
    fn learnable(&mut self, policy: &Trainer, mut rolled: ScoredRollout, late: bool) -> Result<UsedRollout> {
        let mut docs = self.documents(&rolled);
        let corrected = self.how.recomputes(late, rings(&self.asking.ranks));
        let weights = if corrected { self.correct(policy, &mut docs, &mut rolled.seen)? } else { Vec::new() };
        self.judge(policy, &mut docs, &mut rolled)?;
        self.tell(&rolled);
        let group = self.how.answers.max(1);
        let groups = match self.how.loss {
            PolicyName::Rejection => self.best(&rolled, docs),
            _ => {
                self.advance(&rolled, &mut docs)?;
                weigh(&mut docs, &weights);
                docs.chunks(group).map(<[Doc]>::to_vec).collect()
            }
        };
        Ok(UsedRollout { groups, made: 0, corrected })
    }

    /// Prompts with their answers, as documents.
    fn documents(&self, rolled: &ScoredRollout) -> Vec<Doc> {
        let of_group = |group: &Group| {
            let prompt = self.of.prompts[group.prompt].ids.clone();
            let doc = move |episode: &Episode| Doc {
                ids: [&prompt[..], &episode.ids].concat(),
                prompt: prompt.len(),
                heard: episode
                    .heard
                    .iter()
                    .map(|it| it.start + prompt.len()..it.end + prompt.len())
                    .collect(),
                left_out: self.how.mask_truncated && !episode.ended,
                logps: episode.logps.clone(),
                kept: if self.how.keeps() { episode.kept.clone() } else { Vec::new() },
                ..Doc::default()
            };
            group.answers.iter().map(doc).collect::<Vec<_>>()
        };
        let mut docs: Vec<Doc> = rolled.groups.iter().flat_map(of_group).collect();
        for (doc, sum) in docs.iter_mut().zip(&rolled.sums) {
            doc.left_out |= sum.is_nan();
        }
        docs
    }

    /// Sets each token's advantage.
    fn advance(&self, rolled: &ScoredRollout, docs: &mut [Doc]) -> Result<()> {
        if self.how.advantage == AdvantageName::Gae {
            self.estimate(rolled, docs);
            return Ok(());
        }
        let weights: Vec<f64> = self.of.rewards.iter().map(|part| part.weight).collect();
        let tokens: Vec<usize> = docs.iter().map(|doc| if doc.left_out { 0 } else { doc.answer() }).collect();
        let (rewards, each, group) = (&rolled.sums[..], &rolled.each[..], self.how.answers);
        let of = RolloutRewards { rewards, each, weights: &weights, tokens: &tokens, group };
        let refuse = |message: String| Error::Recipe { key: "rl.advantage".into(), message };
        let found = advantages(self.how.advantage, &of).map_err(refuse)?;
        for (doc, advantage) in docs.iter_mut().zip(found) {
            doc.advantages = vec![advantage as f32; doc.answer()];
        }
        Ok(())
    }

    /// Advantages and returns from the value head. The reward is given at an answer's last token and an environment's
    /// reward at its turn's last, minus each token's divergence if that counts in rewards.
    fn estimate(&self, rolled: &ScoredRollout, docs: &mut [Doc]) {
        let within = self.how.kl_in == KlIn::Reward && self.how.has_reference();
        let mut all = Vec::new();
        let weight = self.of.playing.as_ref().map_or(0.0, |playing| playing.weight);
        let episodes = rolled.groups.iter().flat_map(|group| &group.answers);
        for ((doc, sum), episode) in docs.iter_mut().zip(&rolled.sums).zip(episodes) {
            let mut rewards = vec![0.0; doc.answer()];
            let mut last = if sum.is_nan() { 0.0 } else { *sum };
            for (written, reward) in episode.earnings().filter(|_| !sum.is_nan()) {
                rewards[written - 1] += weight * reward;
                last -= weight * reward;
            }
            if within {
                let kls: Vec<f64> = self.divergences(doc).collect();
                rewards.iter_mut().zip(kls).for_each(|(reward, kl)| *reward -= self.how.beta * kl);
            }
            if let Some(end) = rewards.last_mut() {
                *end += last;
            }
            let values: Vec<f64> = doc.values.iter().map(|value| f64::from(*value)).collect();
            let [advantages, returns] = gae(&rewards, &values, [self.how.gamma, self.how.lambda]);
            doc.returns = returns.iter().map(|x| *x as f32).collect();
            all.extend(advantages.iter().filter(|_| !doc.left_out));
            doc.advantages = advantages.iter().map(|x| *x as f32).collect();
        }
        if self.how.whiten {
            let mut white = whitened(&all).into_iter();
            for advantage in docs.iter_mut().filter(|doc| !doc.left_out).flat_map(|doc| &mut doc.advantages) {
                *advantage = white.next().map_or(0.0, |x| x as f32);
            }
        }
    }

    /// The best answers of each group, for learning them as they are; ties go to the first.
    fn best(&self, rolled: &ScoredRollout, docs: Vec<Doc>) -> Vec<Vec<Doc>> {
        let group = self.how.answers.max(1);
        let rank = |sum: f64| if sum.is_nan() { f64::NEG_INFINITY } else { sum };
        let of = |(docs, sums): (&[Doc], &[f64])| {
            let mut order: Vec<usize> = (0..docs.len()).collect();
            order.sort_by(|a, b| rank(sums[*b]).total_cmp(&rank(sums[*a])));
            order.truncate(self.how.keep);
            order.into_iter().filter(|at| !docs[*at].left_out).map(|at| docs[at].clone()).collect()
        };
        docs.chunks(group).zip(rolled.sums.chunks(group)).map(of).collect()
    }
}
