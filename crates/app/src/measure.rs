//! Measurements of a model during a run: loss by position, bits per byte, needles. Connects the engine to `eval`.

use fathom_base::clock::Deadline;
use fathom_base::metrics::{Event, MetricsWriter, events};
use fathom_base::{LanguageModel, Numbers};
use fathom_curate::held_out_documents;
use fathom_engine::{Engine, Limits as EngineLimits};
use fathom_eval::lengths::Ruler;
use fathom_eval::{
    HeldOut, Limits, Moment, NeedleSpec, bits_per_byte, find_needles, loss_of_sequences, worth_of_context,
};
use fathom_model::ModelView;
use fathom_text::Tokenizer;
use fathom_text::store::Column;
use fathom_train::Stores;
use fathom_train::recipe::Recipe;

use crate::error::Result;
use crate::figures::Figures;

/// Tokens reserved for the answer after a prompt.
pub const ANSWER_TOKENS: usize = 64;
/// Tokens of a chunk of a prompt.
const CHUNK_TOKENS: usize = 1024;
/// Length of the shortest needle prompt, in tokens.
const SHORTEST_NEEDLE: usize = 256;
/// Number of texts that needles are hidden in.
const FILLER_TEXTS: usize = 8;

/// Model and data of a measurement.
pub struct Subject<'a> {
    /// Model to measure.
    pub of: ModelView<'a>,
    /// Tokenizer of the model.
    pub tokenizer: &'a Tokenizer,
    /// Stores with the held-out documents.
    pub stores: &'a Stores,
}

impl Subject<'_> {
    /// An engine over the model for texts of up to this many tokens.
    pub(crate) fn engine(&self, context_tokens: usize, chunk_tokens: usize) -> Engine<'_> {
        let limits = EngineLimits { context_tokens, chunk_tokens, ..EngineLimits::default() };
        Engine::new(self.of, self.tokenizer, limits)
    }
}

/// Extent of a measurement.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Point of the run, for the log.
    pub moment: Moment,
    /// Longest sequence, in tokens.
    pub tokens: usize,
    /// Context of bits per byte, and the short context with which a longer one is compared.
    pub context: usize,
    /// Deadline for the whole measurement; `None` measures as much as the recipe says.
    pub deadline: Option<Deadline>,
    /// Parts to measure.
    pub parts: Parts,
}

/// RULER's tasks at the lengths of `eval.ruler`; `None` without any.
///
/// # Errors
/// A file of `eval.ruler_data` that is missing; a length that is too short for a task.
pub fn ruler(recipe: &Recipe, tokenizer: &Tokenizer) -> Result<Option<Ruler>> {
    let eval = &recipe.eval;
    if !eval.enabled || eval.ruler.is_empty() {
        return Ok(None);
    }
    Ok(Some(Ruler::draw(tokenizer, &eval.ruler, eval.ruler_rows, eval.ruler_data.as_deref())?))
}

/// Parts of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Everything.
    All,
    /// Needles only.
    Needles,
}

/// RULER's tasks, and a function that gets the name of each.
type RulerTasks<'a> = Option<(&'a Ruler, &'a dyn Fn(&str))>;

/// Measures a model and logs the results.
pub fn measure(
    subject: &Subject<'_>,
    recipe: &Recipe,
    extent: &Extent,
    ruler: RulerTasks<'_>,
    metrics: &mut MetricsWriter,
) -> Result<Figures> {
    let engine = subject.engine(extent.tokens + ANSWER_TOKENS, CHUNK_TOKENS);
    let mut documents = real_ids(subject)?;
    documents.sort_by_key(|ids| std::cmp::Reverse(ids.len()));
    // A share of the time left; time that a part does not use goes to the parts after it.
    let part = |share: f64| extent.deadline.as_ref().map(|deadline| deadline.part(share));
    let mut figures = Figures::default();
    let of = &extent.moment;
    if extent.parts == Parts::All {
        let most = (recipe.eval.tokens / extent.tokens).max(2);
        let limits = |share| Limits { documents: most, deadline: part(share) };
        let apart = (extent.tokens, subject.tokenizer.eos());
        figures.position = loss_of_sequences(&engine, &documents, apart, &limits(0.12))?;
        let lengths = [extent.tokens, extent.context];
        figures.context = worth_of_context(&engine, &documents, lengths, &limits(0.27))?;
        figures.answers = answers(&engine, subject, extent, part(0.5))?;
    }
    let trials = match (extent.parts, &extent.deadline) {
        (Parts::Needles, None) => recipe.eval.needle_trials.min(1),
        _ => recipe.eval.needle_trials,
    };
    let share = if extent.parts == Parts::All { 0.75 } else { 1.0 };
    figures.needles = needles(&engine, subject, &documents, recipe, (extent, trials, part(share)))?;
    if extent.parts == Parts::All {
        figures.bits = bits(&engine, subject, &documents, extent)?;
        if let Some((ruler, doing)) = ruler {
            figures.ruler = ruler.ask(&engine, subject.tokenizer, doing)?;
        }
    }
    log(&figures, of, metrics)?;
    Ok(figures)
}

fn log(figures: &Figures, of: &Moment, metrics: &mut MetricsWriter) -> Result<()> {
    let Figures { position, context, bits, answers, needles, ruler } = figures;
    let bits = bits.as_ref().map(|bits| bits.to_event(&format!("held-out, {}", of.when), of));
    let events = [
        position.as_ref().map(|position| Event::EvalPosition(position.to_event(of))),
        context.as_ref().map(|context| Event::EvalContext(context.to_event(of))),
        bits.map(Event::EvalBits),
        answers.clone().map(Event::EvalAnswers),
        needles.as_ref().map(|needles| Event::Needle(needles.to_event(of))),
        ruler.as_ref().map(|scores| Event::EvalRuler(scores.to_event(of))),
    ];
    events.iter().flatten().try_for_each(|event| metrics.write(event))?;
    Ok(())
}

/// Returns the stores' held-out documents of real text; ids without the end-of-text token.
///
/// # Errors
/// A store that cannot be read.
pub fn held_out(stores: &Stores, tokenizer: &Tokenizer) -> Result<Vec<HeldOut>> {
    let mut documents = Vec::new();
    for store in stores.measured() {
        for doc in held_out_documents(store, stores.held_out())? {
            documents.push(HeldOut::from_ids(store.doc(doc)?, tokenizer));
        }
    }
    Ok(documents)
}

pub(crate) fn real_ids(subject: &Subject<'_>) -> Result<Vec<Vec<u32>>> {
    let documents = held_out(subject.stores, subject.tokenizer)?;
    Ok(documents.into_iter().map(|document| document.ids).collect())
}

fn bits(
    model: &dyn LanguageModel,
    subject: &Subject<'_>,
    documents: &[Vec<u32>],
    extent: &Extent,
) -> Result<Option<fathom_eval::Bits>> {
    if documents.is_empty() {
        return Ok(None);
    }
    let limits = Limits { documents: usize::MAX, deadline: extent.deadline.clone() };
    let texts = mixed(documents, subject.tokenizer);
    Ok(Some(bits_per_byte(model, subject.tokenizer, texts, extent.context, &limits)?))
}

/// Returns the documents in an order independent of their length, so that a short time limit still measures a mixture.
fn mixed<'a>(documents: &'a [Vec<u32>], tokenizer: &'a Tokenizer) -> impl Iterator<Item = HeldOut> + 'a {
    let order = fathom_eval::mixed(documents);
    order.into_iter().map(|ids| HeldOut { text: tokenizer.decode(ids), ids: ids.clone() })
}

/// Measures bits per byte on about this many tokens of the held-out text, always the same ones; `None` without held-out
/// text.
///
/// # Errors
/// Stores that cannot be read; non-finite losses.
pub fn some_bits(subject: &Subject<'_>, [tokens, context]: [usize; 2]) -> Result<Option<fathom_eval::Bits>> {
    let documents = real_ids(subject)?;
    if documents.is_empty() {
        return Ok(None);
    }
    let engine = subject.engine(context + ANSWER_TOKENS, CHUNK_TOKENS);
    let mut left = tokens as u64;
    let some = mixed(&documents, subject.tokenizer).take_while(|document| {
        let more = left > 0;
        left = left.saturating_sub(document.ids.len() as u64);
        more
    });
    let all = Limits::default();
    Ok(Some(bits_per_byte(&engine, subject.tokenizer, some, context, &all)?))
}

/// Measures the model on the stores' held-out lessons; `None` without any.
fn answers(
    model: &dyn LanguageModel,
    subject: &Subject<'_>,
    extent: &Extent,
    deadline: Option<Deadline>,
) -> Result<Option<events::EvalAnswers>> {
    let stores = subject.stores;
    let Moment { when, step, .. } = extent.moment.clone();
    let mut sums = events::EvalAnswers { when, step, ..events::EvalAnswers::default() };
    let (mut weighed, mut nats, mut hits, mut bytes) = (0.0, 0.0, 0.0, 0u64);
    for store in stores.measured().into_iter().filter(|store| store.has(Column::Weight)) {
        for doc in held_out_documents(store, stores.held_out())? {
            if sums.lessons > 0 && deadline.as_ref().is_some_and(|deadline| deadline.left_s() <= 0.0) {
                break;
            }
            let (mut ids, mut weights) = (store.doc(doc)?, Vec::new());
            store.column_range(Column::Weight, doc, 0..ids.len(), &mut weights)?;
            ids.truncate(model.max_tokens());
            let rows = model.look(std::slice::from_ref(&ids), Numbers::Logprobs)?.concat();
            let answered: Vec<&[f32]> = rows.chunks_exact(2).collect();
            let mut learned = Vec::new();
            for (at, weight) in weights[1..ids.len()].iter().enumerate().filter(|(_, weight)| **weight > 0.0)
            {
                let (loss, hit) = (-f64::from(answered[at][0]), f64::from(answered[at][1]));
                weighed += f64::from(*weight) * loss;
                nats += loss;
                hits += hit;
                sums.loss += f64::from(*weight);
                sums.tokens += 1;
                learned.push(ids[at + 1]);
            }
            bytes += subject.tokenizer.decode(&learned).len() as u64;
            sums.lessons += 1;
        }
    }
    if sums.tokens == 0 {
        return Ok(None);
    }
    let (loss, token_accuracy) = (weighed / sums.loss, hits / sums.tokens as f64);
    let bits_per_byte = nats / std::f64::consts::LN_2 / bytes.max(1) as f64;
    Ok(Some(events::EvalAnswers { loss, token_accuracy, bits_per_byte, ..sums }))
}

fn needles(
    model: &dyn LanguageModel,
    subject: &Subject<'_>,
    documents: &[Vec<u32>],
    recipe: &Recipe,
    (extent, trials, deadline): (&Extent, usize, Option<Deadline>),
) -> Result<Option<fathom_eval::Needles>> {
    let depths = recipe.eval.needle_depths;
    let lengths_tokens = needle_lengths(extent.tokens, model.max_tokens());
    if trials == 0 || depths == 0 || lengths_tokens.is_empty() {
        return Ok(None);
    }
    let filler = needle_filler(documents.iter().map(|ids| subject.tokenizer.decode(ids)));
    let depths = (0..depths).map(|index| index as f64 / (depths.max(2) - 1) as f64).collect();
    let spec = NeedleSpec { lengths_tokens, depths, trials, seed: recipe.run.seed, filler, deadline };
    Ok(Some(find_needles(model, subject.tokenizer, &spec)?))
}

/// Returns the lengths of needle prompts: powers of two times the shortest, up to `tokens`, for a model with room for
/// `room` tokens including the answer.
pub fn needle_lengths(tokens: usize, room: usize) -> Vec<usize> {
    let most = tokens.min(room.saturating_sub(ANSWER_TOKENS));
    let lengths = std::iter::successors(Some(SHORTEST_NEEDLE), |length| length.checked_mul(2));
    lengths.take_while(|length| *length <= most).collect()
}

/// Returns the lines of the first few texts, between which needles are hidden.
pub fn needle_filler(texts: impl Iterator<Item = String>) -> Vec<String> {
    let lines = |text: String| text.lines().map(str::to_string).collect::<Vec<_>>();
    texts.take(FILLER_TEXTS).flat_map(lines).filter(|line| !line.trim().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A learned position table is finite, and the answer follows the prompt.
    #[test]
    fn needles_leave_room_for_the_answer() {
        assert_eq!(needle_lengths(1024, 1024 + ANSWER_TOKENS), [256, 512, 1024]);
        assert_eq!(needle_lengths(1024, 1024), [256, 512]);
        assert!(needle_lengths(255, 4096).is_empty() && needle_lengths(usize::MAX, 64).is_empty());
    }
}
