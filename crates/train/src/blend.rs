//! The sources of a stage's samples: the run's corpus, a part of it, or existing token stores.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use fathom_model::Spec as ModelSpec;
use fathom_text::loader::{self, Cursor, HeldOut, Loader, SourceFilter, Spec, choose, is_held_out};
use fathom_text::store::{Column, Store};
use fathom_text::{Tokenizer, recall};

use crate::claim::claim;
use crate::error::{Error, Result};
use crate::held_out::held_out;
use crate::recipe::{Blend, Recipe};
use crate::rules::rule;
use crate::source::{OpenedSource, Rule, Samples, Shape, Sources, StepShare, loader_spec};

/// Names of the parts of the run's own corpus in a blend.
const TEXT: &str = "text";
const RECALL: &str = "recall";
const DRILL: &str = "drill";
const OWN: [&str; 3] = [TEXT, RECALL, DRILL];

/// Maximum number of passes that are checked before the first step.
const PASSES: u64 = 8;

/// The blend of a stage: its own, or the run's.
fn blend(recipe: &Recipe, index: usize) -> &[Blend] {
    recipe.stage[index].blend(recipe)
}

/// True if a stage draws from the run's own corpus, which then has to be prepared.
pub fn needs_corpus(recipe: &Recipe) -> bool {
    // A policy is given prompts and learns from its own answers.
    !recipe.rl.is_on()
        && (0..recipe.stage.len()).any(|index| {
            let blend = blend(recipe, index);
            blend.is_empty() || blend.iter().any(|part| OWN.contains(&part.source.as_str()))
        })
}

/// True if a store that the stage draws from has loss weights, as a store of lessons does.
pub fn weighted(recipe: &Recipe, index: usize) -> bool {
    if recipe.rl.is_on() {
        return false;
    }
    let blend = blend(recipe, index);
    let own = blend.is_empty() || blend.iter().any(|part| part.source == TEXT);
    let has_weights = |part: &Blend| Column::Weight.exists(Path::new(&part.source));
    let mut named = blend.iter().filter(|part| !OWN.contains(&part.source.as_str()));
    own && recipe.data.is_lessons() || named.any(has_weights)
}

/// The token stores of a run.
#[derive(Clone)]
pub struct Stores {
    corpus: Option<Arc<Store>>,
    named: BTreeMap<String, Arc<Store>>,
    /// Documents kept out of training.
    held_out: HeldOut,
    /// The objective's rule, if it has one.
    rule: Option<Arc<dyn Rule>>,
}

impl Stores {
    /// Opens the run's own corpus, if it has one, and every store that a blend of the recipe names. Each is checked for
    /// ids outside the vocabulary, and every stage for documents to draw, so that a run does not fail only when it
    /// reaches its last stage.
    ///
    /// # Errors
    /// A store that is missing, broken, or holds ids >= `vocab`; a stage for which no document qualifies.
    pub fn open(recipe: &Recipe, corpus: Option<Arc<Store>>, vocab: usize) -> Result<Stores> {
        let mut named = BTreeMap::new();
        if recipe.rl.is_on() {
            return Ok(Stores {
                corpus: None,
                named,
                held_out: recipe.data.held_out_share.into(),
                rule: None,
            });
        }
        for part in (0..recipe.stage.len()).flat_map(|index| blend(recipe, index)) {
            if OWN.contains(&part.source.as_str()) || named.contains_key(&part.source) {
                continue;
            }
            let store = Store::open(Path::new(&part.source))?;
            store.check_ids(vocab as u64)?;
            named.insert(part.source.clone(), Arc::new(store));
        }
        let mut stores = Stores { corpus, named, held_out: recipe.data.held_out_share.into(), rule: None };
        stores.held_out = held_out(recipe, &stores.measured())?;
        (0..recipe.stage.len()).try_for_each(|index| stores.check_stage(recipe, index))?;
        Ok(stores)
    }

    fn check_stage(&self, recipe: &Recipe, index: usize) -> Result<()> {
        let refuse =
            |key: &str, message: String| Error::Recipe { key: format!("stage.{index}{key}"), message };
        let spec = loader_spec(recipe, index, self.held_out);
        let sources = self.sources(recipe, index, &spec)?;
        if sources.is_empty() {
            let message = "there are no synthetic documents for it to draw; raise data.recall_share";
            return Err(refuse(".blend", message.to_owned()));
        }
        let has_documents = |source: &loader::Source| choose(&source.store, &source.part, &spec).map(drop);
        let checked = sources.iter().try_for_each(has_documents);
        checked.map_err(|error| refuse("", error.to_string()))?;
        match &sources[..] {
            [source] if recipe.stage[index].masked => check_room(recipe, index, source, &spec),
            _ => Ok(()),
        }
    }

    /// The same, with the rule of the recipe's objective, if it has one.
    ///
    /// # Errors
    /// A tokenizer without a mask or sentinels; text without its neighbours.
    pub fn with_rule(self, recipe: &Recipe, tokenizer: &Tokenizer) -> Result<Stores> {
        Ok(Stores { rule: rule(recipe, tokenizer, self.corpus.as_ref())?, ..self })
    }

    /// That rule.
    pub(crate) fn rule(&self) -> Option<&dyn Rule> {
        self.rule.as_deref()
    }

    /// Checks that every named store was written with this tokenizer.
    ///
    /// # Errors
    /// A store that names a different tokenizer.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<()> {
        Ok(self.named.values().try_for_each(|store| store.check_tokenizer(tokenizer))?)
    }

    /// Number of held-out documents, of their tokens and bytes, and of the tokens of all documents; synthetic documents
    /// do not count.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub fn held_out_text(&self) -> Result<[u64; 4]> {
        let [mut documents, mut tokens, mut bytes, mut all] = [0; 4];
        for store in self.measured() {
            for doc in recall::real_documents(store) {
                let own = store.doc_len(doc) as u64;
                all += own;
                if is_held_out(store.doc_hash(doc)?, self.held_out) {
                    (documents, tokens) = (documents + 1, tokens + own);
                    bytes += store.doc_meta(doc).map_or(0, |meta| meta.text_bytes);
                }
            }
        }
        Ok([documents, tokens, bytes, all])
    }

    /// Raises the context that the model claims to the longest document of the run, limited by the length of its
    /// samples.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub fn claim(&self, recipe: &Recipe, spec: &mut ModelSpec) -> Result<()> {
        let room = recipe.stage.iter().map(|stage| stage.seq_tokens).max().unwrap_or(0);
        claim(spec, self.longest_tokens()?.min(room));
        Ok(())
    }

    /// Tokens of the longest document; 0 without text.
    fn longest_tokens(&self) -> Result<usize> {
        let mut longest = 0;
        for store in self.measured() {
            for doc in (0..store.num_documents()).filter(|doc| store.doc_len(*doc) > 0) {
                if store.doc_len(doc) > longest && !is_held_out(store.doc_hash(doc)?, self.held_out) {
                    longest = store.doc_len(doc);
                }
            }
        }
        Ok(longest)
    }

    /// The documents kept out of training ([`held_out`]).
    pub fn held_out(&self) -> HeldOut {
        self.held_out
    }

    /// The stores whose held-out documents are measured: the run's own corpus, else every named store.
    pub fn measured(&self) -> Vec<&Store> {
        match &self.corpus {
            Some(corpus) => vec![corpus],
            None => self.named.values().map(Arc::as_ref).collect(),
        }
    }

    /// The sources of a stage. Kinds of synthetic documents that the corpus does not have are omitted.
    pub(crate) fn sources(&self, recipe: &Recipe, index: usize, spec: &Spec) -> Result<Vec<loader::Source>> {
        let blend = blend(recipe, index);
        if blend.is_empty() {
            return Ok(vec![loader::Source {
                store: self.own(index)?,
                part: SourceFilter::Whole,
                weight: 1.0,
            }]);
        }
        let mut sources = Vec::new();
        for named in blend {
            let (store, part) = match named.source.as_str() {
                TEXT => (
                    self.own(index)?,
                    SourceFilter::Without(vec![recall::RECALL.into(), recall::DRILL.into()]),
                ),
                RECALL => (self.own(index)?, SourceFilter::Only(recall::RECALL.into())),
                DRILL => (self.own(index)?, SourceFilter::Only(recall::DRILL.into())),
                prefix => (self.named[prefix].clone(), SourceFilter::Whole),
            };
            if !matches!(part, SourceFilter::Only(_)) || choose(&store, &part, spec).is_ok() {
                sources.push(loader::Source { store, part, weight: named.weight });
            }
        }
        Ok(sources)
    }

    /// Number of samples of each pass of a stage that has `epochs`.
    fn passes(&self, recipe: &Recipe, index: usize) -> Result<Option<Vec<u64>>> {
        let Some(epochs) = recipe.stage[index].epochs else { return Ok(None) };
        let spec = loader_spec(recipe, index, self.held_out);
        let sources = self.sources(recipe, index, &spec)?;
        let [source] = &sources[..] else { return Ok(None) };
        let docs = choose(&source.store, &source.part, &spec)?;
        // Passes differ in their number of samples only if documents are drawn by weight or packed in several windows.
        let spec = spec.of(&source.store);
        let samples = |epoch| loader::samples(&docs, &spec, 0, epoch).len() as u64;
        Ok(Some((0..epochs).map(samples).collect()))
    }

    fn own(&self, index: usize) -> Result<Arc<Store>> {
        let key = format!("stage.{index}.blend");
        let message = "this blend needs the run's own corpus, which was not gathered".to_owned();
        self.corpus.clone().ok_or(Error::Recipe { key, message })
    }
}

/// Refuses a stage with a micro-batch of more documents than masks have room for. Only passes known in advance are
/// checked, and at most [`PASSES`] of them.
fn check_room(recipe: &Recipe, index: usize, source: &loader::Source, spec: &Spec) -> Result<()> {
    let (shape, stage) = (Shape::new(recipe, index), &recipe.stage[index]);
    let (docs, spec) = (choose(&source.store, &source.part, spec)?, spec.of(&source.store));
    // With a number of steps, micro-batches run across the end of a pass, so only the first pass is known exactly.
    for pass in 0..stage.epochs.unwrap_or(1).min(PASSES) {
        let mut samples = loader::samples(&docs, &spec, 0, pass);
        if let (None, Some(steps)) = (stage.epochs, stage.steps) {
            let drawn = steps.saturating_mul((stage.micro_batches * shape.samples) as u64);
            samples.truncate(usize::try_from(drawn).unwrap_or(usize::MAX));
        }
        for micro in samples.chunks(shape.samples) {
            let spans = || micro.iter().flatten();
            let tokens: usize = spans().map(|span| span.len as usize + shape.lead).sum();
            let fills = shape.fills || (shape.one_length && tokens < shape.samples * shape.seq_tokens);
            shape.check_docs(spans().count() * source.store.group() + usize::from(fills))?;
        }
    }
    Ok(())
}

impl Sources for Stores {
    fn open(&self, recipe: &Recipe, index: usize, share: StepShare, cursor: Option<&Cursor>) -> OpenedSource {
        let spec = loader_spec(recipe, index, self.held_out);
        let sources = self.sources(recipe, index, &spec)?;
        let ends = |passes: Vec<u64>| {
            let add = |sum: &mut u64, samples| {
                *sum += samples;
                Some(*sum)
            };
            passes.into_iter().scan(0, add).collect()
        };
        let passes = self.passes(recipe, index)?.map(ends);
        let loader = match cursor {
            Some(cursor) => Loader::resume(sources, spec, cursor)?,
            None => Loader::new(sources, spec)?,
        };
        let samples = Samples::new(loader, Shape::new(recipe, index), share).in_passes(passes);
        Ok(Box::new(samples.by(self.rule.clone())))
    }

    fn steps(&self, recipe: &Recipe, index: usize) -> Result<Option<u64>> {
        let stage = &recipe.stage[index];
        let of_step = (stage.samples_per_micro_batch.max(1) * stage.micro_batches.max(1)) as u64;
        let steps = |passes: Vec<u64>| passes.into_iter().map(|samples| samples.div_ceil(of_step)).sum();
        Ok(self.passes(recipe, index)?.map(steps))
    }

    fn drill_share(&self, recipe: &Recipe, index: usize) -> Result<f64> {
        let spec = loader_spec(recipe, index, self.held_out);
        let (mut drilled, mut all) = (0.0, 0.0);
        for source in self.sources(recipe, index, &spec)? {
            let loader::Source { store, part, weight } = source;
            let share = match &part {
                SourceFilter::Only(name) => f64::from(u8::from(recall::is_synthetic(name))),
                SourceFilter::Without(_) => 0.0,
                SourceFilter::Whole => {
                    let real: BTreeSet<u64> = recall::real_documents(&store).map(|doc| doc as u64).collect();
                    let docs = choose(&store, &part, &spec)?;
                    let tokens = |of: &dyn Fn(u64) -> bool| -> u64 {
                        docs.iter().filter(|doc| of(doc.doc)).map(|doc| doc.tokens).sum()
                    };
                    tokens(&|doc| !real.contains(&doc)) as f64 / tokens(&|_| true).max(1) as f64
                }
            };
            drilled += weight * share;
            all += weight;
        }
        Ok(if all > 0.0 { drilled / all } else { 0.0 })
    }
}
