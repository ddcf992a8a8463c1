//! Evaluation of existing answers by models: log-probabilities under a reference, values of a second head.

use fathom_grad::CrossEntropyLoss;

use super::kept::ScoredRollout;
use super::pack::{Doc, nothing, stream};
use super::policies::Policies;
use super::replicas::{Replica, fetches, rings};
use super::{AdvantageName, mean_and_deviation};
use crate::error::Result;
use crate::micro_batch::MicroBatch;
use crate::parallel::Ranks;
use crate::pass::Pass;
use crate::recipe::{KlIn, RlTable};
use crate::step::Trainer;

/// A quantity to evaluate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Question {
    /// The log-probability of each label, at a temperature.
    Logps(f64),
    /// The output of the second head at each label.
    Values,
}

impl Question {
    /// Evaluates each token of a stream; empty on ranks without the end of the model.
    pub fn ask(self, pass: &Pass<'_>, micro: &MicroBatch) -> Vec<f32> {
        match self {
            Question::Values => pass.values(micro),
            Question::Logps(temperature) => {
                pass.losses(micro, &CrossEntropyLoss { temperature }).into_iter().map(|loss| -loss).collect()
            }
        }
    }

    /// Questions to the in-memory models before a rollout's first step: to the current weights, and to a reference.
    pub fn of(how: &RlTable, ranks: &Ranks) -> [Vec<Question>; 2] {
        let logps = |is: bool| is.then_some(Question::Logps(how.temperature));
        let values = how.has_values().then_some(Question::Values);
        let again = how.recomputes(how.behind > 0, rings(ranks));
        [logps(again).into_iter().chain(values).collect(), logps(how.has_reference()).into_iter().collect()]
    }
}

/// Evaluated answers: the index of the document, and the bits of its tokens' numbers.
type AnswerBits = Vec<(usize, Vec<u32>)>;

/// Evaluates the documents in some streams, which `fill` pads; empty on ranks without the end of the model.
fn judged(
    pass: &Pass<'_>,
    docs: &[Doc],
    bins: Vec<Vec<usize>>,
    fill: &dyn Fn(MicroBatch) -> MicroBatch,
    question: Question,
) -> AnswerBits {
    let mut said = Vec::new();
    for bin in bins {
        let micro = match bin[..] {
            [] => nothing(),
            _ => stream(&bin.iter().map(|at| &docs[*at]).collect::<Vec<_>>(), false),
        };
        let micro = fill(micro);
        let all = question.ask(pass, &micro);
        if all.is_empty() {
            continue;
        }
        for (at, place) in bin.into_iter().zip(&micro.docs) {
            let bits = docs[at].labels().map(|label| all[place.start + label].to_bits());
            said.push((at, bits.collect()));
        }
    }
    said
}

impl Policies {
    /// Evaluates each answer, token by token, on all ranks; the answers are divided among replicas. If the result
    /// depends on the rest of the stream, the streams are those of the rollout's steps.
    pub(super) fn asked(
        &self,
        policy: &Trainer,
        pass: Pass<'_>,
        docs: &[Doc],
        question: Question,
    ) -> Result<Vec<Vec<f32>>> {
        let mesh = &policy.device.mesh;
        let replica = Replica::of_readers(mesh);
        let bins = if rings(&self.asking.ranks) {
            self.streams_of_steps(docs, mesh)
        } else {
            let all: Vec<&Doc> = docs.iter().collect();
            let mut shares: Vec<Vec<Vec<usize>>> =
                replica.shares(docs.len()).map(|share| self.streams(&all, share)).collect();
            let most = shares.iter().map(Vec::len).max().unwrap_or(0);
            let mut own = shares.swap_remove(replica.index());
            if fetches(mesh, &self.asking.ranks) {
                // Replicas that fetch weights from each other run the same number of streams; the added ones have no
                // documents.
                own.resize(most, Vec::new());
            }
            own
        };
        let own = judged(&pass, docs, bins, &|micro| self.whole(micro), question);
        let mut found = vec![Vec::new(); docs.len()];
        for (at, bits) in replica.all(&policy.device, Ok(own))? {
            found[at] = bits.into_iter().map(f32::from_bits).collect();
        }
        Ok(found)
    }

    /// Evaluates the reference and the value head, and subtracts the divergence from rewards if it counts there.
    pub(super) fn judge(&self, policy: &Trainer, docs: &mut [Doc], rolled: &mut ScoredRollout) -> Result<()> {
        let reference = policy.reference().filter(|_| self.how.has_reference());
        if let Some(reference) = reference {
            let question = Question::Logps(self.how.temperature);
            let logps = self.asked(policy, reference.pass(policy, &self.asking), docs, question)?;
            docs.iter_mut().zip(logps).for_each(|(doc, logps)| doc.reference = logps);
        }
        if self.how.has_values() {
            let values = self.asked(policy, policy.pass(&self.asking), docs, Question::Values)?;
            docs.iter_mut().zip(values).for_each(|(doc, values)| doc.values = values);
        }
        if self.how.kl_in == KlIn::Loss || reference.is_none() {
            return Ok(());
        }
        let kls: Vec<f64> = docs.iter().map(|doc| self.divergences(doc).sum()).collect();
        let [mean, _] = mean_and_deviation(kls.iter().copied());
        rolled.seen.insert("objective/kl".into(), mean);
        // With estimated token advantages, the divergence is counted per token instead.
        if self.how.advantage != AdvantageName::Gae {
            rolled.sums.iter_mut().zip(kls).for_each(|(sum, kl)| *sum -= self.how.beta * kl);
        }
        Ok(())
    }

    /// The divergence from the reference at each token of an answer.
    pub(super) fn divergences<'b>(&'b self, doc: &'b Doc) -> impl Iterator<Item = f64> + 'b {
        let estimator = self.how.estimator();
        let each = doc.logps.iter().zip(&doc.reference);
        each.map(move |(logp, reference)| estimator.of(f64::from(*logp), f64::from(*reference))[0])
    }
}
