//! Log-likelihoods of continuations. Where several follow one context, it is read once and its pages are shared.

use std::collections::HashMap;

use fathom_base::{
    Continuation, Describe, Error, GenerateRequest, LanguageModel, LogLikelihood, Result, collect_output,
    outputs_while,
};
use fathom_engine::Handle;

/// Tokens of a context from which it is worth sharing.
const SHARED: usize = 32;

/// Log-likelihoods of texts, in order.
///
/// # Errors
/// Those of [`LanguageModel::log_likelihoods`].
pub fn of(service: &Handle, texts: &[Continuation]) -> Result<Vec<LogLikelihood>> {
    let mut by_context: HashMap<&[u32], Vec<usize>> = HashMap::new();
    let (room, card) = (service.max_tokens(), service.card());
    let shares = card.generates && !card.source;
    for (at, text) in texts.iter().enumerate() {
        let fits = text.context.len() + text.continuation.len() < room && !text.continuation.is_empty();
        if text.context.len() >= SHARED && fits && shares {
            by_context.entry(&text.context).or_default().push(at);
        }
    }
    let mut found = vec![LogLikelihood::default(); texts.len()];
    let mut groups: Vec<Vec<usize>> = by_context.into_values().filter(|group| group.len() > 1).collect();
    groups.sort_unstable();
    // The first of each context reads it for the others.
    let first: Vec<usize> = groups.iter().map(|group| group[0]).collect();
    let rest: Vec<usize> = groups.iter().flat_map(|group| &group[1..]).copied().collect();
    for wave in [&first, &rest] {
        for (at, likelihood) in wave.iter().zip(after_contexts(service, texts, wave)?) {
            found[*at] = likelihood;
        }
    }
    let is_alone = |at: &usize| first.binary_search(at).is_err() && !rest.contains(at);
    let alone: Vec<usize> = (0..texts.len()).filter(is_alone).collect();
    let looked: Vec<Continuation> = alone.iter().map(|at| texts[*at].clone()).collect();
    if !looked.is_empty() {
        for (at, likelihood) in alone.into_iter().zip(service.log_likelihoods(&looked)?) {
            found[at] = likelihood;
        }
    }
    Ok(found)
}

/// Likelihoods of texts whose contexts may be cached.
fn after_contexts(service: &Handle, texts: &[Continuation], wave: &[usize]) -> Result<Vec<LogLikelihood>> {
    let mut open = Vec::with_capacity(wave.len());
    for text in wave.iter().map(|at| &texts[*at]) {
        let ids = [&text.context[..], &text.continuation].concat();
        let request = GenerateRequest { prompt_logprobs: Some(0), ..GenerateRequest::greedy(ids, 1) };
        let (sink, collected) = collect_output(1);
        open.push((collected, service.submit_from((request, text.context.len()), sink, &|| true)?));
    }
    let outputs = outputs_while(open.iter().map(|(collected, _)| collected), &|| true)?.unwrap_or_default();
    let mut found = Vec::with_capacity(wave.len());
    for (output, at) in outputs.into_iter().zip(wave) {
        let of =
            output.logprobs.iter().map(|it| (f64::from(it.logprob.unwrap_or(f32::NAN)), it.rank == Some(0)));
        let (logprobs, hits): (Vec<f64>, Vec<bool>) = of.unzip();
        if logprobs.len() != texts[*at].continuation.len() {
            let message =
                format!("{} log-probabilities of {} tokens", logprobs.len(), texts[*at].continuation.len());
            return Err(Error::product(message));
        }
        found.push(LogLikelihood { logprobs, hits });
    }
    Ok(found)
}
