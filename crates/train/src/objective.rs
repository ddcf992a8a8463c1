//! Objectives of training. Pretraining, fine-tuning and alignment are the same loop with different objectives.
//!
//! An objective names losses over the vocabulary's logits at each label, with a weight each ([`Objective::terms`]): the weighted sum
//! is minimised. A new one is an implementation of [`TileLoss`], and terms can be added to each other. With constant weights of tokens
//! the head makes its gradients in the forward pass. Any other objective is a [`Weigh`]: from the losses of the whole stream, in the
//! order of its tokens whatever the mesh, it computes the derivative of its sum by each of them, in f64 on the host, and the head
//! computes the gradients in a second pass over the logits. Sums over a document (DPO, GSPO) are sums over a range of that stream.
//!
//! All gradients are of a sum; the optimizer divides by [`Objective::count`], added up over the micro-batches and ranks
//! of the step.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fathom_grad::{CrossEntropyLoss, TileLoss};
use fathom_model::{Quantization, Retrieval, Spec, TrainableWeights, scored_at};

use crate::hidden_loss::HiddenLoss;
use crate::micro_batch::{ContrastLosses, MicroBatch};
use crate::reference::Refers;

/// An objective of training.
pub trait Objective: fmt::Debug + Send + Sync {
    /// Its name in recipes and logs.
    fn name(&self) -> &'static str;

    /// The micro-batch's part of the divisor of the step's sum: its number of tokens, pairs or answers.
    fn count(&self, micro: &MicroBatch) -> f64;

    /// Losses at each label whose weighted sum is minimised; none if the vocabulary's head is not asked.
    fn terms(&self) -> Vec<WeightedLoss> {
        vec![WeightedLoss::cross_entropy()]
    }

    /// How weights of tokens follow from losses; `None` where they are constant: those of the micro batch, or one each.
    fn weigh(&self) -> Option<&dyn Weigh> {
        None
    }

    /// Number of rows for which the head runs if that is of chosen tokens alone: at least as many as there are labels in a
    /// stream of so many tokens and documents.
    fn chosen(&self, _tokens: usize, _docs: usize) -> Option<usize> {
        None
    }

    /// Tokens of the source and of the main stream that a micro-batch is filled up to, if it has both: of texts with this many tokens
    /// and documents.
    fn streams(&self, _tokens: usize, _docs: usize) -> Option<[usize; 2]> {
        None
    }

    /// Sizes of chunks and neighbours, if the source reads those.
    fn retrieval(&self) -> Option<Retrieval> {
        None
    }

    /// Type of each token, if texts of pairs have different ones; for a model that has types.
    fn types(&self, _micro: &MicroBatch) -> Option<Vec<i32>> {
        None
    }

    /// Its comparisons with a teacher, if it has one; such an objective has constant weights.
    fn teacher(&self) -> Option<TeacherUse<'_>> {
        None
    }

    /// Names of the means that a step reports besides the objective's: with constant weights those of its terms, where there are
    /// several, and the distance of hidden states.
    fn measures(&self) -> Vec<&'static str> {
        if let Some(weigh) = self.weigh() {
            return weigh.metrics().to_vec();
        }
        let terms = self.terms();
        let several = terms.len() > 1;
        let hidden = self.teacher().is_some_and(|teacher| teacher.hidden.is_some());
        let names = terms.iter().filter(|_| several).map(|term| term.loss.name());
        names.chain(hidden.then_some("hidden_distance")).collect()
    }

    /// Label metrics that a run reports if [`Goal::measured`] is set.
    fn measured(&self) -> LabelMetrics {
        LabelMetrics::Nothing
    }
}

/// A loss over logits in what is minimised.
#[derive(Clone, Debug)]
pub struct WeightedLoss {
    /// Multiplies it. Of a [`Weigh`] a loss of weight 0 is given to it and has no gradient.
    pub weight: f64,
    /// The loss.
    pub loss: Arc<dyn TileLoss>,
}

impl WeightedLoss {
    /// A loss and its weight.
    pub fn new(weight: f64, loss: impl TileLoss + 'static) -> WeightedLoss {
        WeightedLoss { weight, loss: Arc::new(loss) }
    }

    /// The cross-entropy of labels.
    pub fn cross_entropy() -> WeightedLoss {
        WeightedLoss::new(1.0, CrossEntropyLoss::PLAIN)
    }
}

/// The comparisons of an objective with a teacher.
#[derive(Clone, Copy, Debug)]
pub struct TeacherUse<'a> {
    /// The teacher's best tokens alone, from the micro batch; else a teacher runs with the step.
    pub best: Option<Best>,
    /// Hidden states, of a teacher that runs with the step.
    pub hidden: Option<&'a HiddenLoss>,
}

/// A teacher's best tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// Number of tokens per label.
    pub tokens: usize,
    /// If true, the remaining mass is one more token; otherwise the best tokens are normalised to sum to one.
    pub rest: bool,
}

/// Label metrics of the vocabulary's distribution, under TRL's names: the mean entropy in nats, and the share of labels
/// that are the most likely token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelMetrics {
    /// None.
    Nothing,
    /// The entropy.
    Entropy,
    /// Both.
    Both,
    /// Both; the share counts only labels in the first document of each pair.
    OfChosen,
}

impl LabelMetrics {
    /// Names of the metrics.
    fn names(self) -> &'static [&'static str] {
        match self {
            LabelMetrics::Nothing => &[],
            LabelMetrics::Entropy => &["entropy"],
            LabelMetrics::Both | LabelMetrics::OfChosen => &["entropy", "mean_token_accuracy"],
        }
    }

    /// 1 for each token of a stream that counts for the second metric and 0 for the others; `None` if all count.
    pub(crate) fn chosen(self, micro: &MicroBatch) -> Option<Vec<f32>> {
        (self == LabelMetrics::OfChosen).then(|| {
            let mut chosen = vec![0.0; micro.ids.len()];
            for doc in micro.docs[..micro.facts.documents().min(micro.docs.len())].iter().step_by(2) {
                chosen[doc.clone()].fill(1.0);
            }
            chosen
        })
    }
}

/// An objective whose weights depend on the log-probabilities.
pub trait Weigh {
    /// Names of the entries of [`ObjectiveSum::metrics`], in order.
    fn metrics(&self) -> &[&'static str];

    /// Asks the model's second head, of a few numbers a token: a reward, a value.
    fn scores(&self) -> bool {
        false
    }

    /// Reads hidden states in place of scores: all columns of each token.
    fn states(&self) -> bool {
        false
    }

    /// Compares the vectors of all documents of a step: those are computed before it weighs any micro-batch.
    fn compares(&self) -> Option<&dyn Compares> {
        None
    }

    /// Documents of a row of data.
    fn group(&self) -> usize {
        1
    }

    /// Adds derived values to the means of a step.
    fn derive(&self, _means: &mut BTreeMap<String, f64>) {}

    /// True if log-probabilities are over the tokens from which each label was sampled only ([`crate::RolloutColumns::kept`]).
    fn keeps(&self) -> bool {
        false
    }

    /// A reference that is in memory is asked for the first term in each step; else whoever makes micro batches has asked it.
    fn asks_reference(&self) -> bool {
        true
    }

    /// True if it needs sums over all micro-batches of a step before it weighs any: [`Weigh::ahead`] of each.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// A sum over one micro-batch and its divisor; their totals over the step are [`crate::StepTotals::ahead`].
    fn ahead(&self, _answers: &Answers<'_>) -> [f64; 2] {
        [0.0; 2]
    }

    /// The objective's sum over a micro-batch, with its derivatives. Every rank that has the end of the model calls
    /// this with the same numbers.
    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum;
}

/// An objective over the vectors of all documents of a step.
pub trait Compares: fmt::Debug {
    /// The vectors of a micro-batch's documents, one after the other, from the rows of hidden states.
    fn vectors(&self, answers: &Answers<'_>) -> Vec<f32>;

    /// Losses and gradients by the vectors of all documents of a step; documents with the same key have the same text.
    fn compare(&self, vectors: &[f32], keys: &[u64]) -> ContrastLosses;
}

/// A micro-batch and the model's outputs for it.
#[derive(Clone, Copy, Debug)]
pub struct Answers<'a> {
    /// The whole stream.
    pub micro: &'a MicroBatch,
    /// The first of [`Objective::terms`], of each token: minus the natural log-probability of its label; 0 where there is none. Empty
    /// without terms.
    pub losses: &'a [f32],
    /// The other terms.
    pub others: &'a [Vec<f32>],
    /// Outputs of the second head, token by token. Empty if it was not run.
    pub scores: &'a [f32],
    /// The token with which the model pads its batches ([`fathom_model::scored_at`]).
    pub padding: Option<u32>,
    /// A text's scores are those of its first token; else of the last that is not padding.
    pub at_first: bool,
}

impl<'a> Answers<'a> {
    /// Outputs of the vocabulary head only.
    pub fn of(micro: &'a MicroBatch, losses: &'a [f32]) -> Answers<'a> {
        Answers { micro, losses, others: &[], scores: &[], padding: None, at_first: false }
    }

    /// The token of the stream with a document's scores.
    pub fn scored_row(&self, doc: &Range<usize>) -> usize {
        let ids = self.micro.ids[doc.clone()].iter().map(|id| i64::from(*id));
        doc.start + if self.at_first { 0 } else { scored_at(self.padding, ids) }
    }

    /// Sum of the log-probabilities of a document's labels, added in token order.
    pub fn logp(&self, doc: &Range<usize>) -> f64 {
        -self.losses[doc.clone()].iter().map(|loss| f64::from(*loss)).sum::<f64>()
    }

    /// The same sum under the model of the micro-batch's reference column; 0 without one.
    pub fn reference(&self, doc: &Range<usize>) -> f64 {
        let valid = |at: &usize| self.micro.labels[*at] >= 0;
        let reference = self.micro.reference.get(doc.clone()).unwrap_or_default();
        doc.clone().zip(reference).filter(|(at, _)| valid(at)).map(|(_, logp)| f64::from(*logp)).sum()
    }

    /// Number of labels in a document.
    pub fn labels(&self, doc: &Range<usize>) -> usize {
        self.micro.labels[doc.clone()].iter().filter(|label| **label >= 0).count()
    }
}

/// An objective's sum over a micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectiveSum {
    /// The sum.
    pub loss: f64,
    /// Its derivative by the first term of each token of the stream, if there are terms.
    pub weights: Vec<f32>,
    /// Its derivative by the other terms; anything for those of weight 0.
    pub others: Vec<Vec<f32>>,
    /// Derivative by each score, if the second head was run.
    pub scores: Vec<f32>,
    /// A sum and its divisor for each name of [`Weigh::metrics`].
    pub metrics: Vec<[f64; 2]>,
}

impl ObjectiveSum {
    /// Its derivative by a term; empty on a machine without data.
    pub(crate) fn by(&self, term: usize) -> &[f32] {
        match term {
            0 => &self.weights,
            _ => self.others.get(term - 1).map_or(&[], Vec::as_slice),
        }
    }
}

/// The cross-entropy of the next token, weighted if the micro-batch has weights, whose sum is then the divisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossEntropy;

impl Objective for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        if micro.weights.is_empty() {
            return micro.valid() as f64;
        }
        let labelled = micro.weights.iter().zip(&micro.labels).filter(|(_, label)| **label >= 0);
        labelled.map(|(weight, _)| f64::from(*weight)).sum()
    }

    fn measured(&self) -> LabelMetrics {
        LabelMetrics::Both
    }
}

/// The loss of dynamic fine-tuning (Wu and others, 2025; TRL's `dft`): `-p log p` of each label, with the probability
/// `p` constant for the gradient, times the micro-batch's weight if there is one. Divided like [`CrossEntropy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dft;

impl Objective for Dft {
    fn name(&self) -> &'static str {
        "dft"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        CrossEntropy.count(micro)
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }

    fn measured(&self) -> LabelMetrics {
        LabelMetrics::Both
    }
}

impl Weigh for Dft {
    /// The mean cross-entropy, which the objective itself does not show.
    fn metrics(&self) -> &[&'static str] {
        &["cross_entropy"]
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let Answers { micro, losses, .. } = answers;
        let mut weighed = ObjectiveSum { weights: vec![0.0; losses.len()], ..ObjectiveSum::default() };
        let (mut entropy, mut count) = (0.0, 0.0);
        for (at, loss) in losses.iter().enumerate().filter(|(at, _)| micro.labels[*at] >= 0) {
            let loss = f64::from(*loss);
            let given = micro.weights.get(at).map_or(1.0, |weight| f64::from(*weight));
            let weight = given * (-loss).exp();
            weighed.weights[at] = weight as f32;
            weighed.loss += weight * loss;
            entropy += given * loss;
            count += given;
        }
        weighed.metrics = vec![[entropy, count]];
        weighed
    }
}

/// The objective of a run, with the weights that it trains.
#[derive(Clone, Debug)]
pub struct Goal {
    /// The objective.
    pub objective: Arc<dyn Objective>,
    /// Micro-batches have weights, and memory for them on the machine.
    pub weighted: bool,
    /// The weights to train, for plans. A trainer trains those that were not frozen.
    pub trained: TrainableWeights,
    /// Format of quantized projections that are not trained, for plans as well.
    pub quantized: Option<Quantization>,
    /// Architecture of a teacher that runs in every step, for plans. A trainer's own is [`crate::Trainer::teacher`].
    pub teacher: Option<Arc<Spec>>,
    /// Noise on embeddings.
    pub noise: Option<Noise>,
    /// Seed of an adapter's dropout, which depends on it, the step, the document, the token's place in the document and
    /// the module, and not on how documents are packed and distributed.
    pub drops: Option<u64>,
    /// The reference model of a step, for plans too.
    pub refers: Refers,
    /// Models with other adapters over the same base that were created before this one; their weights and optimizer
    /// state are in memory too. For plans.
    pub before: Vec<Arc<Spec>>,
    /// Those created after it.
    pub after: Vec<Arc<Spec>>,
    /// Models that judge answers, whose weights are in memory during steps too. For plans.
    pub judges: Vec<Arc<Spec>>,
    /// True if steps report the label metrics of [`Objective::measured`].
    pub measured: bool,
}

impl Goal {
    /// The label metrics that are reported.
    pub(crate) fn measured(&self) -> LabelMetrics {
        if self.measured { self.objective.measured() } else { LabelMetrics::Nothing }
    }

    /// True if other adapters take steps between this one's, so that nothing may be in flight when a step ends.
    pub(crate) fn takes_turns(&self) -> bool {
        !self.before.is_empty() || !self.after.is_empty()
    }

    /// The machine adds up some of what a step reports.
    pub(crate) fn adds(&self) -> bool {
        self.measured() != LabelMetrics::Nothing
            || (self.objective.weigh().is_none() && !self.objective.measures().is_empty())
    }

    /// Names of the means that a step reports in addition to the objective.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        [&self.objective.measures(), self.measured().names()].concat()
    }

    /// Number of accumulators for them; label metrics are the last two.
    pub(crate) fn sums(&self) -> usize {
        self.objective.measures().len() + if self.measured() == LabelMetrics::Nothing { 0 } else { 2 }
    }
}

/// Noise on the embeddings of training tokens (NEFTune: Jain and others, 2023): uniform from -1 to 1, times `alpha /
/// sqrt(L d)` with the length L of the token's document and the width d. It depends on the seed, the micro-batch's
/// number, the token's place in the stream and the column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Scale of the noise.
    pub alpha: f64,
    /// Seed of the run.
    pub seed: u64,
}

impl Default for Goal {
    /// The cross-entropy, with all tokens weighted equally and all weights trained.
    fn default() -> Goal {
        let (objective, trained) = (Arc::new(CrossEntropy), TrainableWeights::all());
        Goal {
            objective,
            weighted: false,
            trained,
            quantized: None,
            teacher: None,
            noise: None,
            drops: None,
            refers: Refers::Not,
            before: Vec::new(),
            after: Vec::new(),
            judges: Vec::new(),
            measured: false,
        }
    }
}
