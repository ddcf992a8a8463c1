//! The source of a policy's own answers: prompts in a seeded order, groups of answers written with the weights that are trained, their
//! rewards and advantages, packed into micro batches.
//!
//! What a step is given depends on the recipe, the number of prompts drawn before, and the weights. A rollout that several steps share
//! is kept in the cursor between them, as is one that was written a rollout ahead (`rl.behind`), so that a run that goes on from a
//! checkpoint has the same answers.

use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use fathom_model::Rollout;
use fathom_tensor::mesh::Mesh;
use fathom_text::Rng;
use fathom_text::lessons::Prompt;
use fathom_text::loader::Cursor;

use super::apart::Coming;
use super::episodes::{Episode, Playing};
use super::importance::weigh;
use super::kept::{Group, Pending, Rolled, held, kept};
use super::pack::{Doc, Room, bins, nothing, stream};
use super::replicas::{dealt, rings};
use super::reward::WeightedReward;
use super::{Scored, advantages, gae, mean_and_deviation, whitened};
use crate::error::{Error, Result};
use crate::micro_batch::MicroBatch;
use crate::policy::AdvantageName;
use crate::recipe::{KlIn, PolicyName, Recipe, RlTable};
use crate::source::{Reported, Share, Source, Sources, fill};
use crate::stage;
use crate::step::{InStep, Trainer};

/// What the two kinds of random numbers are keyed by, besides the run's seed.
const ORDER: u64 = 1;
const DRAWS: u64 = 2;

/// What rollouts are made of.
pub struct Rolling {
    /// All prompts.
    pub prompts: Vec<Prompt>,
    /// Names them: another file, tokenizer or template is another name.
    pub fingerprint: String,
    /// Who writes.
    pub rollout: Box<dyn Rollout>,
    /// What answers are worth.
    pub rewards: Vec<WeightedReward>,
    /// Who replies to them, so that they have several turns.
    pub playing: Option<Playing>,
}

/// Makes the sources of a run that learns from rewards.
#[derive(Clone)]
pub struct Rollouts(pub Rc<Rolling>);

impl Sources for Rollouts {
    fn open(
        &self,
        recipe: &Recipe,
        index: usize,
        _: Share,
        cursor: Option<&Cursor>,
    ) -> Result<Box<dyn Source>> {
        let shape = stage::shape(recipe, index);
        // What fills a stream up is a document.
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
            reported: Reported::default(),
            wait_s: 0.0,
        };
        if let Some(cursor) = cursor {
            source.resume(cursor)?;
        }
        Ok(Box::new(source))
    }

    /// A pass asks each prompt once; those that are too few for a rollout at its end are left out, as in TRL.
    fn steps(&self, recipe: &Recipe, index: usize) -> Result<Option<u64>> {
        let Some(epochs) = recipe.stage[index].epochs else { return Ok(None) };
        let rollouts = (self.0.prompts.len() / recipe.rl.prompts.max(1)).max(1) as u64;
        Ok(Some(epochs * rollouts * recipe.rl.steps() as u64))
    }

    fn round(&self, recipe: &Recipe) -> u64 {
        recipe.rl.steps() as u64
    }
}

/// The source of a stage.
pub(super) struct Policies {
    pub(super) of: Rc<Rolling>,
    pub(super) how: RlTable,
    pub(super) room: Room,
    /// A prompt and what is behind it have at most this many tokens.
    pub(super) seq_tokens: usize,
    /// Streams are filled up, with positions as in samples of so many tokens.
    filled: Option<usize>,
    /// How models are asked of answers.
    pub(super) asking: InStep,
    seed: u64,
    shuffle: bool,
    cursor: Cursor,
    pending: Option<Pending>,
    /// Answers of the rollout after this one, where they are written a rollout ahead; without rewards until they are learned.
    next: Option<Rolled>,
    /// Those of its rewards that are on their way, by part.
    pub(super) coming: Vec<Option<Coming>>,
    pub(super) reported: Reported,
    wait_s: f64,
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

    fn reported(&mut self) -> Reported {
        std::mem::take(&mut self.reported)
    }
}

impl Policies {
    /// Goes on from a saved position.
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

    /// This rank's micro batches of the next step of the rollout, as many on each.
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

    /// The streams of some of these documents, by their numbers.
    pub(super) fn streams(&self, docs: &[&Doc], of: Range<usize>) -> Vec<Vec<usize>> {
        let number = |bin: Vec<usize>| bin.into_iter().map(|at| of.start + at).collect();
        bins(&docs[of.clone()], self.room).into_iter().map(number).collect()
    }

    /// This rank's streams of all steps of a rollout, by the numbers of its documents: what steps add up there, other passes do too.
    pub(super) fn streams_of_steps(&self, docs: &[Doc], mesh: &Mesh) -> Vec<Vec<usize>> {
        let (group, parts) = (self.how.answers.max(1), self.how.minibatches.max(1));
        let (all, groups) = (docs.iter().collect::<Vec<_>>(), docs.len() / group);
        let of = |part: usize| part * groups / parts * group..(part + 1) * groups / parts * group;
        (0..parts).flat_map(|part| dealt(self.streams(&all, of(part)), mesh, &self.asking.ranks)).collect()
    }

    /// A stream of as many tokens as ranks that share it count on.
    pub(super) fn whole(&self, mut micro: MicroBatch) -> MicroBatch {
        if let Some(seq_tokens) = self.filled {
            fill(&mut micro, self.room.tokens, seq_tokens);
        }
        micro
    }

    /// The prompts drawn next, by number: all once in each pass, in an order of its own.
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

    /// Answers with their rewards; with dynamic sampling until there are enough groups that differ.
    fn answers(&mut self, policy: &Trainer) -> Result<Rolled> {
        let (mut all, mut dropped, mut asked) = (Rolled::default(), 0, 0);
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

    /// The next rollout; with `rl.behind` also the answers of the one after it, by the weights that this one's steps are about to change.
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

    /// The next answers, where there is something to do before their rewards are needed without them.
    fn ahead(&mut self, policy: &Trainer) -> Result<Rolled> {
        // Of dynamic sampling rewards say which groups are kept.
        if self.how.behind > 0 && !self.how.dynamic_sampling {
            self.write_ahead(policy)
        } else {
            self.answers(policy)
        }
    }

    /// Documents of answers, with their advantages; `late` are those that earlier weights wrote.
    fn learnable(&mut self, policy: &Trainer, mut rolled: Rolled, late: bool) -> Result<Pending> {
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
        Ok(Pending { groups, made: 0, corrected })
    }

    /// The answers behind their prompts.
    fn documents(&self, rolled: &Rolled) -> Vec<Doc> {
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

    /// Gives each token its advantage.
    fn advance(&self, rolled: &Rolled, docs: &mut [Doc]) -> Result<()> {
        if self.how.advantage == AdvantageName::Gae {
            self.estimate(rolled, docs);
            return Ok(());
        }
        let weights: Vec<f64> = self.of.rewards.iter().map(|part| part.weight).collect();
        let tokens: Vec<usize> = docs.iter().map(|doc| if doc.left_out { 0 } else { doc.answer() }).collect();
        let (rewards, each, group) = (&rolled.sums[..], &rolled.each[..], self.how.answers);
        let of = Scored { rewards, each, weights: &weights, tokens: &tokens, group };
        let refuse = |message: String| Error::Recipe { key: "rl.advantage".into(), message };
        let found = advantages(self.how.advantage, &of).map_err(refuse)?;
        for (doc, advantage) in docs.iter_mut().zip(found) {
            doc.advantages = vec![advantage as f32; doc.answer()];
        }
        Ok(())
    }

    /// Advantages and returns by the value head. The reward comes with an answer's last token, but what an environment gave to a turn with
    /// that turn's last, less the divergence of each where that counts in rewards.
    fn estimate(&self, rolled: &Rolled, docs: &mut [Doc]) {
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

    /// The best answers of each group, to be learned as they are; of equals the first.
    fn best(&self, rolled: &Rolled, docs: Vec<Doc>) -> Vec<Vec<Doc>> {
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
