//! What a model says of rows: of a language model how likely it holds the answers, which a run takes as its reference, or its best tokens
//! in place of each, which a student learns from; of a reward model their rewards. Of several answers to a prompt the likelihoods that
//! SteerLM 2 learns from.

mod responses;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use fathom_engine::{Engine, Limits};
use fathom_model::Spec;
use fathom_text::Tokenizer;
use fathom_text::chat::Template;
use fathom_text::lessons::{Answers, Judge, Lesson, Lessons, Rows, Teaching};
use fathom_train::recipe::Precision;
use serde_json::{Map, Value, json};

use crate::error::{Context, Result, caught, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{self, TextModel};
use crate::text::reference;
use responses::Asks;
pub use responses::Likelihood;

/// What is asked.
pub struct Request {
    /// A run's folder, or a Hugging Face folder.
    pub model: PathBuf,
    /// An adapter of it with a head of scores: a run's folder, or PEFT's.
    pub adapter: Option<PathBuf>,
    /// JSON lines of two answers each; with `best` of lessons.
    pub data: PathBuf,
    /// The file to write: the same rows with what the model says.
    pub out: PathBuf,
    /// Type of the weights.
    pub precision: Precision,
    /// How many best tokens of each token, and at which temperature, in place of log-probabilities.
    pub best: Option<(usize, f64)>,
    /// Of a reward model the names of its scores: rows are conversations, and what is said of each last answer becomes its `label`.
    pub labels: Vec<String>,
    /// Of rows with several answers to a prompt: which likelihood of each is written; of a label with this deviation of ratings from scores.
    pub responses: Option<(Likelihood, f64)>,
}

/// Scores the rows of a file; how many there were.
///
/// # Errors
/// No model there, a row that cannot be read, or is too long for the model.
pub fn score(request: &Request, machine: &Machine, events: &dyn Events) -> Result<usize> {
    let dtype = models::precision(request.precision);
    let TextModel { folder, tokenizer, loaded } =
        models::open_with(&request.model, request.adapter.as_deref(), Some(dtype), machine, events)?;
    caught(|| {
        let spec = &loaded.model.spec;
        if let Some(adapter) = request.adapter.as_ref().filter(|_| spec.scores == 0) {
            refuse!(
                "{} is no reward model; what a run takes as its reference is a model in one folder: merge the adapter first (fathom export)",
                adapter.display()
            );
        }
        let template = Template::from_dir(&folder, &tokenizer)?;
        if !request.labels.is_empty() && request.labels.len() != spec.scores {
            refuse!(
                "--labels names {} scores, and {} has {}",
                request.labels.len(),
                folder.display(),
                spec.scores
            );
        }
        let single = request.best.is_some() || !request.labels.is_empty();
        let judge = if single { Judge::None } else { Judge::Pairs };
        let answers = Answers { judge, whole: true, ..Answers::default() };
        let teaching = Teaching { max_tokens: usize::MAX, answers, ..Teaching::default() };
        let engine = {
            let limits = Limits { context_tokens: usize::MAX >> 1, chunk_tokens: 1024, ..Limits::default() };
            Engine::new(loaded.view(), &tokenizer, limits)
        };
        check_best(request.best, spec, &folder)?;
        let engine = engine.at(request.best.map_or(1.0, |(_, temperature)| temperature));
        if let Some((which, deviation)) = request.responses {
            let asks = Asks { which, names: &request.labels, deviation };
            asks.check(spec.scores)?;
            return of_responses(request, &asks, (&engine, &tokenizer, template.as_ref()));
        }
        let model = match request.best {
            Some((k, temperature)) => reference::named(&reference::hash_of_best(&folder, k, temperature)?),
            None => reference::named(&reference::hash(&folder)?),
        };
        let (mut out, mut rows) = (created(request)?, 0);
        let read = Lessons::new(vec![request.data.clone()], (&tokenizer, template.as_ref()), &teaching);
        for (row, documents) in Rows::open(&request.data)?.zip(read) {
            let (Value::Object(mut row), documents) = (row?, documents?) else { continue };
            if row.contains_key("text") && !single {
                refuse!(
                    "{}: a `text` is compared with the next row's, and has no place for two",
                    request.data.display()
                );
            }
            let (key, said) = match (request.best, spec.scores) {
                (Some((k, _)), _) => ("teacher", best(&engine, &documents, k, &model)?),
                (None, 0) => ("reference", likely(&engine, &documents, &model)?),
                _ => ("rewards", rewards(&engine, &documents)?),
            };
            match request.labels.as_slice() {
                [] => drop(row.insert(key.into(), said)),
                names => label(&mut row, names, &said)
                    .with_context(|| format!("{}: row {}", request.data.display(), rows + 1))?,
            }
            write(&mut out, &row).with_context(|| format!("cannot write {}", request.out.display()))?;
            rows += 1;
        }
        out.flush()?;
        Ok(rows)
    })
}

/// Refuses best tokens that a model does not have.
fn check_best(best: Option<(usize, f64)>, spec: &Spec, folder: &Path) -> Result<()> {
    let Some((k, temperature)) = best else { return Ok(()) };
    if !(1..=spec.vocab).contains(&k) || !(0.01..=1000.0).contains(&temperature) {
        refuse!(
            "--top-k {k} of {} tokens at --temperature {temperature}: give 1 to {} and 0.01 to 1000",
            spec.vocab,
            spec.vocab
        );
    }
    if spec.scores > 0 {
        refuse!("{} is a reward model, which has no best tokens: leave --top-k out", folder.display());
    }
    Ok(())
}

fn created(request: &Request) -> Result<BufWriter<std::fs::File>> {
    let file = std::fs::File::create(&request.out)
        .with_context(|| format!("cannot create {}", request.out.display()))?;
    Ok(BufWriter::new(file))
}

/// Rows with several answers; how many there were.
fn of_responses(
    request: &Request,
    asks: &Asks<'_>,
    (engine, tokenizer, template): (&Engine<'_>, &Tokenizer, Option<&Template>),
) -> Result<usize> {
    let (mut out, mut count) = (created(request)?, 0);
    let mut rows = Rows::open(&request.data)?;
    while let Some(row) = rows.next() {
        let Value::Object(mut row) = row? else {
            refuse!("{}:{}: is no JSON object with named fields", request.data.display(), rows.line());
        };
        if let Err(why) = asks.write(engine, (tokenizer, template), &mut row) {
            refuse!("{}:{}: {why}", request.data.display(), rows.line());
        }
        write(&mut out, &row).with_context(|| format!("cannot write {}", request.out.display()))?;
        count += 1;
    }
    out.flush().with_context(|| format!("cannot write {}", request.out.display()))?;
    Ok(count)
}

/// Says of the last answer what it is like: whole numbers, as SteerLM's labels are.
fn label(row: &mut Map<String, Value>, names: &[String], said: &Value) -> Option<()> {
    let scores = said[0].as_array()?;
    let part = |(name, score): (&String, &Value)| Some(format!("{name}:{:.0}", score.as_f64()?.max(0.0)));
    let text = names.iter().zip(scores).map(part).collect::<Option<Vec<_>>>()?.join(",");
    let turns = ["messages", "conversations"].into_iter().find(|key| row.contains_key(*key))?;
    let last = row.get_mut(turns)?.as_array_mut()?.last_mut()?.as_object_mut()?;
    last.insert("label".into(), text.into());
    Some(())
}

fn write(out: &mut dyn Write, row: &Map<String, Value>) -> std::io::Result<()> {
    writeln!(out, "{}", serde_json::to_string(row)?)
}

/// The log-probability of each token of the answers; the first of a text has none, and 0.
fn likely(engine: &Engine<'_>, documents: &[Lesson], model: &str) -> Result<Value> {
    let ids: Vec<Vec<u32>> = documents.iter().map(|document| document.ids.clone()).collect();
    let losses = engine.losses_of(&ids).map_err(fathom_base::Error::from)?;
    let logps = losses
        .iter()
        .map(|losses| [0.0].into_iter().chain(losses.iter().map(|loss| -loss)).collect::<Vec<f32>>());
    Ok(json!({"model": model, "logps": logps.collect::<Vec<_>>()}))
}

/// The best tokens in place of each token of a lesson; in place of the first there are none.
fn best(engine: &Engine<'_>, documents: &[Lesson], k: usize, model: &str) -> Result<Value> {
    let ids: Vec<Vec<u32>> = documents.iter().map(|document| document.ids.clone()).collect();
    let found = engine.best_of(&ids, k).map_err(fathom_base::Error::from)?.concat();
    let column = |odd: usize| -> Vec<Vec<f32>> {
        let of = |token: &[f32]| token.iter().skip(odd).step_by(2).copied().collect();
        std::iter::once(Vec::new()).chain(found.chunks(2 * k).skip(1).map(of)).collect()
    };
    let ids: Vec<Vec<u32>> =
        column(0).into_iter().map(|ids| ids.into_iter().map(|id| id as u32).collect()).collect();
    Ok(json!({"model": model, "ids": ids, "logps": column(1)}))
}

/// The scores of the last token of each answer.
fn rewards(engine: &Engine<'_>, documents: &[Lesson]) -> Result<Value> {
    let ids: Vec<Vec<u32>> = documents.iter().map(|document| document.ids.clone()).collect();
    Ok(json!(engine.scores_of(&ids).map_err(fathom_base::Error::from)?))
}
