//! Scores of rows by a model: log-probabilities of answers under a language model (the reference of a later run), its
//! top tokens at each position (distillation), the rewards of a reward model, or the likelihoods of several answers to
//! a prompt that SteerLM 2 trains on. An encoder-decoder's are the losses of answers.

mod answers;
mod request;
mod responses;

use std::io::Write;
use std::path::Path;

use fathom_base::{LanguageModel, Numbers};
use fathom_model::Spec;
use fathom_text::Tokenizer;
use fathom_text::chat::Template;
use fathom_text::lessons::{Answers, Judge, Lesson, LessonConversion, Lessons, Rows};
use serde_json::{Map, Value, json};

use crate::error::{Context, Result, refuse};
use crate::events::Events;
use crate::host::{Host, HostFacts, HostOptions};
use crate::machine::Machine;
use crate::text::reference;
pub use request::Request;
use request::{created, write};
use responses::Asks;
pub use responses::Likelihood;

/// Scores the rows of a file; returns their number.
///
/// # Errors
/// No model there; a row that cannot be read, or is too long for the model.
pub fn score(request: &Request, machine: &Machine, events: &dyn Events) -> Result<usize> {
    let dtype = request.precision.dtype();
    let options = HostOptions {
        adapter: request.adapter.clone(),
        dtype: Some(dtype),
        sequences: 0,
        context_tokens: Some(usize::MAX >> 1),
        ..HostOptions::new(&request.model, machine)
    };
    let host = Host::open(options, events)?;
    let HostFacts { folder, tokenizer, spec } = host.facts();
    if let Some(adapter) = request.adapter.as_ref().filter(|_| spec.scores == 0) {
        refuse!(
            "{} is no reward model; what a run takes as its reference is a model in one folder: merge the adapter first (fathom export)",
            adapter.display()
        );
    }
    let template = Template::from_dir(folder, tokenizer)?;
    if spec.source > 0 {
        return answers::score(request, &host, template.as_ref());
    }
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
    let teaching = LessonConversion { max_tokens: usize::MAX, answers, ..LessonConversion::default() };
    check_best(request.best, spec, folder)?;
    if let Some((which, deviation)) = request.responses {
        let asks = Asks { which, names: &request.labels, deviation };
        asks.check(spec.scores)?;
        return of_responses(request, &asks, (&host, tokenizer, template.as_ref()));
    }
    let model = match request.best {
        Some((k, temperature)) => reference::named(&reference::hash_of_best(folder, k, temperature)?),
        None => reference::named(&reference::hash(folder)?),
    };
    let (mut out, mut rows) = (created(request)?, 0);
    let read = Lessons::new(vec![request.data.clone()], (tokenizer, template.as_ref()), &teaching);
    for (row, documents) in Rows::open(&request.data)?.zip(read) {
        let (Value::Object(mut row), documents) = (row?, documents?) else { continue };
        if row.contains_key("text") && !single {
            refuse!(
                "{}: a `text` is compared with the next row's, and has no place for two",
                request.data.display()
            );
        }
        let (key, said) = match (request.best, spec.scores) {
            (Some(how), _) => ("teacher", best(&host, &documents, how, &model)?),
            (None, 0) => ("reference", likely(&host, &documents, &model)?),
            _ => ("rewards", rewards(&host, &documents)?),
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
}

/// Refuses a number of top tokens or a temperature that the model does not support.
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

/// Scores rows with several answers; returns their number.
fn of_responses(
    request: &Request,
    asks: &Asks<'_>,
    (model, tokenizer, template): (&dyn LanguageModel, &Tokenizer, Option<&Template>),
) -> Result<usize> {
    let (mut out, mut count) = (created(request)?, 0);
    let mut rows = Rows::open(&request.data)?;
    while let Some(row) = rows.next() {
        let Value::Object(mut row) = row? else {
            refuse!("{}:{}: is no JSON object with named fields", request.data.display(), rows.line());
        };
        if let Err(why) = asks.write(model, (tokenizer, template), &mut row) {
            refuse!("{}:{}: {why}", request.data.display(), rows.line());
        }
        write(&mut out, &row).with_context(|| format!("cannot write {}", request.out.display()))?;
        count += 1;
    }
    out.flush().with_context(|| format!("cannot write {}", request.out.display()))?;
    Ok(count)
}

/// Sets the `label` of the last answer to its scores, rounded to integers as SteerLM's labels are.
fn label(row: &mut Map<String, Value>, names: &[String], said: &Value) -> Option<()> {
    let scores = said[0].as_array()?;
    let part = |(name, score): (&String, &Value)| Some(format!("{name}:{:.0}", score.as_f64()?.max(0.0)));
    let text = names.iter().zip(scores).map(part).collect::<Option<Vec<_>>>()?.join(",");
    let turns = ["messages", "conversations"].into_iter().find(|key| row.contains_key(*key))?;
    let last = row.get_mut(turns)?.as_array_mut()?.last_mut()?.as_object_mut()?;
    last.insert("label".into(), text.into());
    Some(())
}

/// Computes numbers of the texts of documents.
fn looked(model: &dyn LanguageModel, documents: &[Lesson], at: Numbers) -> Result<Vec<Vec<f32>>> {
    let ids: Vec<Vec<u32>> = documents.iter().map(|document| document.ids.clone()).collect();
    Ok(model.look(&ids, at)?)
}

/// Returns the log-probability of each token of the answers; 0 for the first token of a text, which has none.
fn likely(model: &dyn LanguageModel, documents: &[Lesson], name: &str) -> Result<Value> {
    let rows = looked(model, documents, Numbers::Logprobs)?;
    let logps =
        rows.iter().map(|row| [0.0].into_iter().chain(row.iter().step_by(2).copied()).collect::<Vec<f32>>());
    Ok(json!({"model": name, "logps": logps.collect::<Vec<_>>()}))
}

/// Returns the top tokens at each position of a training row; none for the first position.
fn best(
    model: &dyn LanguageModel,
    documents: &[Lesson],
    (k, temperature): (usize, f64),
    name: &str,
) -> Result<Value> {
    let found = looked(model, documents, Numbers::Top { k, temperature })?.concat();
    let column = |odd: usize| -> Vec<Vec<f32>> {
        let of = |token: &[f32]| token.iter().skip(odd).step_by(2).copied().collect();
        std::iter::once(Vec::new()).chain(found.chunks(2 * k).skip(1).map(of)).collect()
    };
    let ids: Vec<Vec<u32>> =
        column(0).into_iter().map(|ids| ids.into_iter().map(|id| id as u32).collect()).collect();
    Ok(json!({"model": name, "ids": ids, "logps": column(1)}))
}

/// Returns the scores at the last token of each answer.
fn rewards(model: &dyn LanguageModel, documents: &[Lesson]) -> Result<Value> {
    Ok(json!(looked(model, documents, Numbers::Scores)?))
}
