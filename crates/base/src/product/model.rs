//! A language model asked by one caller, who waits.

use super::answer::Generation;
use super::request::GenerateRequest;
use super::service::{Evaluate, Generate, Numbers, Service, TextIds};
use crate::error::Result;

/// A language model asked by one caller, who waits for the results: an engine on the caller's own thread, or a
/// [`Service`] behind a queue.
pub trait LanguageModel {
    /// Maximum length of a text with its answer, in tokens.
    fn max_tokens(&self) -> usize;

    /// Answers several requests, computed together; returns each request's answers, in order.
    ///
    /// # Errors
    /// The first request that is refused or fails.
    fn generate_all(&self, requests: Vec<GenerateRequest>) -> Result<Vec<Vec<Generation>>>;

    /// Computes numbers of texts given as token ids, in one pass over each.
    ///
    /// # Errors
    /// A text that is empty, too long, or has unknown ids; numbers that are not finite.
    fn look(&self, texts: &[Vec<u32>], at: Numbers) -> Result<Vec<Vec<f32>>>;

    /// Log-likelihoods of continuations, each given its context.
    ///
    /// # Errors
    /// Those of [`look`](LanguageModel::look); an empty context is one, since its next token has no probability.
    fn log_likelihoods(&self, texts: &[Continuation]) -> Result<Vec<LogLikelihood>> {
        let ids: Vec<Vec<u32>> = texts.iter().map(|it| it.text().ids).collect();
        Ok(likelihoods(texts, self.look(&ids, Numbers::Logprobs)?))
    }
}

/// Log-likelihoods of continuations, by the numbers of their texts ([`Numbers::Logprobs`]).
pub fn likelihoods(texts: &[Continuation], rows: Vec<Vec<f32>>) -> Vec<LogLikelihood> {
    let of = |(text, row): (&Continuation, Vec<f32>)| {
        let tokens = row.chunks_exact(2);
        let before = tokens.len().saturating_sub(text.continuation.len());
        let (logprobs, hits) = tokens.skip(before).map(|token| (f64::from(token[0]), token[1] > 0.0)).unzip();
        LogLikelihood { logprobs, hits }
    };
    texts.iter().zip(rows).map(of).collect()
}

/// Token ids of a text in two parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Continuation {
    /// Tokens that are given; at least one.
    pub context: Vec<u32>,
    /// Tokens whose probability is wanted.
    pub continuation: Vec<u32>,
}

impl Continuation {
    /// Both parts; for an encoder-decoder, a source with its answer.
    pub fn text(&self) -> TextIds {
        TextIds { ids: [&self.context[..], &self.continuation].concat(), first: self.context.len() }
    }
}

/// Log-likelihood of a continuation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogLikelihood {
    /// Natural log-probability of each of its tokens.
    pub logprobs: Vec<f64>,
    /// For each of its tokens, whether no other is more likely.
    pub hits: Vec<bool>,
}

impl LogLikelihood {
    /// Natural log-probability of the whole continuation.
    pub fn sum(&self) -> f64 {
        self.logprobs.iter().sum()
    }

    /// Returns whether greedy generation would give the continuation.
    pub fn is_greedy(&self) -> bool {
        self.hits.iter().all(|hit| *hit)
    }
}

impl<S: Service + ?Sized> LanguageModel for S {
    fn max_tokens(&self) -> usize {
        self.card().context_tokens
    }

    fn generate_all(&self, requests: Vec<GenerateRequest>) -> Result<Vec<Vec<Generation>>> {
        Ok(Generate::generate_while(self, requests, &|| true)?.unwrap_or_default())
    }

    fn look(&self, texts: &[Vec<u32>], at: Numbers) -> Result<Vec<Vec<f32>>> {
        let texts = texts.iter().cloned().map(Into::into).collect();
        Ok(Evaluate::look_while(self, texts, at, &|| true)?.unwrap_or_default())
    }

    fn log_likelihoods(&self, texts: &[Continuation]) -> Result<Vec<LogLikelihood>> {
        let ids = texts.iter().map(Continuation::text).collect();
        let rows = Evaluate::look_while(self, ids, Numbers::Logprobs, &|| true)?.unwrap_or_default();
        Ok(likelihoods(texts, rows))
    }
}
