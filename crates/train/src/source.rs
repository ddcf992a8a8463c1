//! Sources of a run's micro-batches.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fathom_base::metrics::events;
use fathom_text::lessons::Truncation;
use fathom_text::loader::{self, Cursor, Loader, Shuffle, Split};
use fathom_text::pack::{self, Boundaries, IGNORE, PackedSample};

use crate::error::{Error, Result};
use crate::micro_batch::{MicroBatch, RolloutColumns, StepTotals};
use crate::recipe::{LengthWeight, Packing, Recipe};
use crate::step::Trainer;

const _: () = assert!(fathom_text::pack::VIRTUAL as usize == fathom_grad::VIRTUAL);

/// Source of a stage's micro-batches, step by step, with a position that can be saved.
pub trait Source {
    /// This rank's micro-batches of the next step, the same number on each rank. `policy` is the current model, for
    /// sources that generate text with it.
    ///
    /// # Errors
    /// Data that can no longer be read, or does not fit the stage's shape.
    fn step(&mut self, policy: &Trainer) -> Result<Vec<MicroBatch>>;

    /// The position after the last returned step.
    fn cursor(&self) -> &Cursor;

    /// Total seconds that calls of [`Source::step`] waited for data.
    fn wait_s(&self) -> f64;

    /// Takes the report on the last step's micro-batches.
    fn reported(&mut self) -> SourceReport {
        SourceReport::default()
    }
}

/// A source's report on a step.
#[derive(Clone, Debug, Default)]
pub struct SourceReport {
    /// Metrics of the step for the log, by name.
    pub metrics: BTreeMap<String, f64>,
    /// Answers written by the policy.
    pub rollout: Option<events::Rollout>,
}

/// A stage's source, or the reason why there is none.
pub type OpenedSource = Result<Box<dyn Source>>;

/// Creates the sources of a run's stages.
pub trait Sources {
    /// The source of a stage, from its beginning or from a saved position.
    ///
    /// # Errors
    /// There is nothing to draw, or the position belongs to other data.
    fn open(&self, recipe: &Recipe, index: usize, share: StepShare, cursor: Option<&Cursor>) -> OpenedSource;

    /// Number of steps of a stage that ends with its data ([`crate::recipe::Stage::epochs`]); `None` for any other.
    ///
    /// # Errors
    /// There is nothing to draw.
    fn steps(&self, recipe: &Recipe, index: usize) -> Result<Option<u64>>;

    /// Number of steps that share work done by the first of them, such as a rollout: their durations repeat with this
    /// period.
    fn round(&self, _recipe: &Recipe) -> u64 {
        1
    }

    /// Share of a stage's tokens that are synthetic look-up drills.
    ///
    /// # Errors
    /// There is nothing to draw.
    fn drill_share(&self, _recipe: &Recipe, _index: usize) -> Result<f64> {
        Ok(0.0)
    }
}

/// A rank's micro-batches among those of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepShare {
    /// Number of micro-batches in a step.
    pub all: usize,
    /// Indices of this rank's micro-batches.
    pub own: Range<usize>,
}

/// Shape of a stage's micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Index of the stage.
    pub stage: usize,
    /// Samples per micro-batch, packed into one stream.
    pub samples: usize,
    /// Maximum number of tokens in a sample.
    pub seq_tokens: usize,
    /// Maximum number of documents in a micro-batch; padding counts as one.
    pub docs: usize,
    /// True if all are padded to the maximum number of tokens.
    pub one_length: bool,
    /// True if a single rank uses them, so that a step may have fewer.
    pub alone: bool,
    /// Virtual tokens before each document.
    pub lead: usize,
    /// A document without a loss fills up each micro-batch.
    pub fills: bool,
}

/// A rule that makes inputs and labels of packed texts.
pub trait Rule: fmt::Debug + Send + Sync {
    /// Changes a micro-batch of a stage, in place.
    ///
    /// # Errors
    /// A text that it cannot be applied to.
    fn apply(&self, micro: &mut MicroBatch, shape: &Shape) -> Result<()>;
}

/// Samples of token stores, a fixed number in each micro-batch: endless, from a position that can be saved.
pub struct Samples {
    loader: Loader,
    shape: Shape,
    share: StepShare,
    /// Total number of samples up to the end of each pass; `None` is endless.
    passes: Option<Vec<u64>>,
    /// The objective's rule, if it does not predict the next token of a text.
    rule: Option<Arc<dyn Rule>>,
}

/// Tokens of a micro-batch without samples, in the last step of a stage that ends with its data.
const NOTHING: usize = 2;

impl Samples {
    /// Micro-batches of this shape, for one of the ranks.
    pub fn new(loader: Loader, shape: Shape, share: StepShare) -> Samples {
        Samples { loader, shape, share, passes: None, rule: None }
    }

    /// Ends with the last of these passes. A step never spans two passes: the rest of a pass is its last step.
    pub fn in_passes(self, passes: Option<Vec<u64>>) -> Samples {
        Samples { passes, ..self }
    }

    /// Applies a rule to each micro-batch.
    pub fn by(self, rule: Option<Arc<dyn Rule>>) -> Samples {
        Samples { rule, ..self }
    }

    /// Sample at which the next step must end.
    fn end(&self) -> u64 {
        let sample = self.loader.cursor().sample;
        let Some(passes) = &self.passes else { return u64::MAX };
        passes.iter().copied().find(|end| *end > sample).unwrap_or(sample)
    }

    /// The next micro-batch, of samples before `end`.
    ///
    /// # Errors
    /// More documents than masks have room for; a store that cannot be read any more.
    fn micro_batch(&mut self, end: u64) -> Result<MicroBatch> {
        let mut micro = MicroBatch { number: self.loader.cursor().sample, ..MicroBatch::default() };
        for _ in 0..self.shape.samples {
            if self.loader.cursor().sample < end {
                append(&mut micro, &self.loader.next()?.led(self.shape.lead));
            }
        }
        if let Some(rule) = &self.rule {
            rule.apply(&mut micro, &self.shape)?;
        }
        if micro.source.is_some() {
            // Both streams are full.
            return self.shape.check(micro);
        }
        let least = match micro.ids.len() {
            _ if self.shape.one_length => self.shape.samples * self.shape.seq_tokens,
            0 => NOTHING,
            tokens => tokens,
        };
        fill(&mut micro, least, self.shape.seq_tokens);
        self.shape.check(micro)
    }
}

impl Source for Samples {
    /// All ranks read the same stream, so the position does not depend on their number.
    fn step(&mut self, _policy: &Trainer) -> Result<Vec<MicroBatch>> {
        let mut own: Vec<MicroBatch> = Vec::with_capacity(self.share.own.len());
        let mut all = StepTotals::default();
        let (end, began) = (self.end(), self.loader.cursor().sample);
        for index in 0..self.share.all {
            if self.shape.alone && index > 0 && self.loader.cursor().sample >= end {
                break;
            }
            let next = MicroBatch { began, ..self.micro_batch(end)? };
            let has = next.totals();
            all.documents += has.documents;
            all.labels += has.labels;
            if self.share.own.contains(&index) {
                own.push(next);
            }
        }
        if all.documents > 0.0 {
            own.iter_mut().for_each(|micro| micro.step = Some(all));
        }
        Ok(own)
    }

    fn cursor(&self) -> &Cursor {
        self.loader.cursor()
    }

    fn wait_s(&self) -> f64 {
        self.loader.total_wait_s()
    }
}

impl Shape {
    /// Shape of the micro-batches of a recipe's stage.
    pub fn new(recipe: &Recipe, index: usize) -> Shape {
        let (stage, mesh) = (&recipe.stage[index], &recipe.mesh);
        // Ranks that share a micro-batch's tokens, or exchange rows, rely on known lengths.
        let one_length = mesh.tp * mesh.cp * mesh.ep * mesh.etp > 1;
        Shape {
            stage: index,
            samples: stage.samples_per_micro_batch.max(1),
            seq_tokens: stage.seq_tokens,
            docs: recipe.docs(index),
            one_length,
            alone: !one_length && mesh.dp * mesh.pp == 1,
            lead: recipe.leads(),
            fills: recipe.fills(),
        }
    }

    /// Refuses a micro-batch with too many documents for masks.
    fn check(&self, micro: MicroBatch) -> Result<MicroBatch> {
        self.check_docs(micro.docs.len())?;
        Ok(micro)
    }

    /// Refuses `found` documents in one micro-batch if masks have no room for them.
    pub(crate) fn check_docs(&self, found: usize) -> Result<()> {
        let room = self.docs;
        if found <= room {
            return Ok(());
        }
        let key = format!("stage.{}.max_docs", self.stage);
        let message = format!(
            "a micro batch has {found} documents and masks have room for {room}; take {} (it changes no number, so the run may \
             go on with it)",
            found.div_ceil(self.samples).next_power_of_two()
        );
        Err(Error::Recipe { key, message })
    }
}

/// The loader's settings for a stage, with the documents `held_out` excluded.
pub fn loader_spec(recipe: &Recipe, index: usize, held_out: impl Into<loader::HeldOut>) -> loader::Spec {
    let stage = &recipe.stage[index];
    let packing = match stage.packing {
        Packing::Cut => pack::Packing::Concatenate,
        Packing::BestFit => pack::Packing::BestFit,
        Packing::Single => pack::Packing::Single,
    };
    let whole = recipe.objective.method.judges().then_some(Truncation::Error);
    let kept = whole.unwrap_or(recipe.teaching().truncation);
    loader::Spec {
        packing,
        boundaries: if stage.masked { Boundaries::Masked } else { Boundaries::Unmasked },
        shuffle: if recipe.data.shuffle { Shuffle::Documents } else { Shuffle::None },
        seed: recipe.run.seed.wrapping_add(index as u64),
        split: Split::Train { held_out: held_out.into() },
        min_doc_tokens: stage.min_doc_tokens as u64,
        length_weights: stage.length_weights.iter().map(length_weight).collect(),
        ahead: recipe.data.ahead,
        lead: recipe.leads() as u32,
        kept: recipe.data.is_lessons().then_some(kept),
        ..loader::Spec::new(stage.seq_tokens as u32)
    }
}

fn length_weight(of: &LengthWeight) -> loader::LengthWeight {
    loader::LengthWeight { min_tokens: of.min_tokens as u64, weight: of.weight }
}

/// Pads a micro-batch to `tokens` tokens with a separate range without loss.
pub(crate) fn fill(micro: &mut MicroBatch, tokens: usize, seq_tokens: usize) {
    let from = micro.ids.len();
    if from < tokens {
        micro.ids.resize(tokens, 0);
        micro.labels.resize(tokens, IGNORE);
        micro.positions.extend((0..tokens - from).map(|at| (at % seq_tokens) as i32));
        micro.docs.push(from..tokens);
        // Columns are padded with zeros too.
        let RolloutColumns { logps, kept, advantages, values, returns, .. } = &mut micro.rolled;
        let width = kept.len().checked_div(from).unwrap_or(0);
        kept.resize(width * tokens, 0);
        let rolled = [logps, advantages, values, returns];
        for column in [&mut micro.weights, &mut micro.reference, &mut micro.best].into_iter().chain(rolled) {
            let width = column.len().checked_div(from).unwrap_or(0);
            column.resize(width * tokens, 0.0);
        }
    }
}

/// Appends a sample to the stream.
pub(crate) fn append(micro: &mut MicroBatch, packed: &PackedSample) {
    let start = micro.ids.len();
    micro.ids.extend(packed.tokens.iter().map(|id| *id as i32));
    micro.labels.extend(&packed.labels);
    micro.positions.extend(&packed.positions);
    let column = |column: &mut Vec<f32>, more: &[f32], absent: f32| {
        if !(column.is_empty() && more.is_empty()) {
            let width = (more.len() / packed.tokens.len().max(1)).max(column.len() / start.max(1)).max(1);
            column.resize(width * start, absent);
            column.extend(more);
            column.resize(width * (start + packed.tokens.len()), absent);
        }
    };
    column(&mut micro.weights, &packed.weights, 1.0);
    column(&mut micro.reference, &packed.reference, 0.0);
    column(&mut micro.best, &packed.best, 0.0);
    micro.facts.extend(&packed.facts);
    micro.spans.extend(&packed.spans);
    micro.docs.extend(packed.docs.iter().map(|(from, to)| start + *from as usize..start + *to as usize));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Stage;

    #[test]
    fn documents_are_drawn_by_the_weights_of_their_stage() {
        let length_weights = vec![LengthWeight { min_tokens: 64, weight: 2.5 }];
        let recipe =
            Recipe { stage: vec![Stage { length_weights, ..Stage::default() }], ..Recipe::default() };
        let drawn = loader_spec(&recipe, 0, 0.0).length_weights;
        assert_eq!(drawn, [loader::LengthWeight { min_tokens: 64, weight: 2.5 }]);
    }
}
