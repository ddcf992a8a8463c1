//! Losses of answers under an encoder-decoder, which reads prompts as its sources.

use std::io::Write;

use fathom_base::{Continuation, LanguageModel};
use fathom_text::chat::Template;
use fathom_text::lessons::{Lesson, LessonConversion, Lessons, Rows};
use serde_json::{Value, json};

use super::request::{Request, created, write};
use crate::error::{Context, Result, refuse};
use crate::host::{Host, HostFacts};
use crate::text::reference;

/// Scores rows of a prompt and an answer; returns their number.
///
/// # Errors
/// An option for decoders and reward models alone; a row that cannot be read, or is too long for the model.
pub(super) fn score(request: &Request, host: &Host, template: Option<&Template>) -> Result<usize> {
    let HostFacts { folder, tokenizer, .. } = host.facts();
    let asks = [
        ("--top-k", request.best.is_some()),
        ("--labels", !request.labels.is_empty()),
        ("--responses", request.responses.is_some()),
    ];
    if let Some((option, _)) = asks.iter().find(|(_, asks)| *asks) {
        refuse!(
            "{} is an encoder-decoder, whose answers have a loss; {option} is for decoders and reward models",
            folder.display()
        );
    }
    let model = reference::named(&reference::hash(folder)?);
    let end = tokenizer.require_eos()?;
    let teaching = LessonConversion { max_tokens: usize::MAX, ..LessonConversion::default() };
    let (mut out, mut rows) = (created(request)?, 0);
    let read = Lessons::new(vec![request.data.clone()], (tokenizer, template), &teaching);
    for (row, documents) in Rows::open(&request.data)?.zip(read) {
        let (Value::Object(mut row), documents) = (row?, documents?) else { continue };
        let pairs: Vec<Continuation> = documents.iter().map(|lesson| pair(lesson, end)).collect();
        let found = host.log_likelihoods(&pairs)?;
        let logps: Vec<Vec<f64>> = found.into_iter().map(|it| it.logprobs).collect();
        let all = logps.concat();
        let loss = -all.iter().sum::<f64>() / all.len() as f64;
        row.insert("likelihood".into(), json!({"model": model, "loss": loss, "logps": logps}));
        write(&mut out, &row).with_context(|| format!("cannot write {}", request.out.display()))?;
        rows += 1;
    }
    out.flush()?;
    Ok(rows)
}

/// The source and the answer of a row, as they are trained on: each ends with the end of texts.
fn pair(lesson: &Lesson, end: u32) -> Continuation {
    let ids = lesson.ids.strip_suffix(&[end]).unwrap_or(&lesson.ids);
    let start = lesson.weights.iter().position(|weight| *weight > 0.0).unwrap_or(ids.len()).min(ids.len());
    let [context, continuation] = [&ids[..start], &ids[start..]].map(|part| [part, &[end]].concat());
    Continuation { context, continuation }
}
