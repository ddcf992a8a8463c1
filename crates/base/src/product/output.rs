//! The events of a request, collected into whole answers.

use std::mem;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use super::answer::{Event, Generation, Sink, Stop, TokenLogprob, Usage};
use super::relay::POLL;
use crate::error::{Error, Result};

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Log-probabilities of these, if requested.
    pub logprobs: Vec<TokenLogprob>,
    /// Reason why it ended.
    pub stop: Option<Stop>,
}

/// Everything that a request's events reported.
#[derive(Debug, Default)]
pub struct RequestOutput {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Log-probabilities of these, if requested.
    pub logprobs: Vec<TokenLogprob>,
    /// The answers.
    pub answers: Vec<Answer>,
    /// Resources used, once the request is done.
    pub usage: Option<Usage>,
    /// Error of a request that failed.
    pub failed: Option<Error>,
}

impl RequestOutput {
    /// Begins with this number of empty answers.
    pub fn of(answers: usize) -> RequestOutput {
        RequestOutput { answers: vec![Answer::default(); answers], ..RequestOutput::default() }
    }

    /// Adds an event.
    pub fn push(&mut self, event: Event) {
        match event {
            Event::Started { prompt, logprobs, .. } => (self.prompt, self.logprobs) = (prompt, logprobs),
            Event::Piece { answer, text, ids, logprobs } => {
                let answer = self.answer(answer);
                answer.text.push_str(&text);
                answer.ids.extend(ids);
                answer.logprobs.extend(logprobs);
            }
            Event::Ended { answer, stop } => self.answer(answer).stop = Some(stop),
            Event::Done(usage) => self.usage = Some(usage),
            Event::Failed(error) => self.failed = Some(error),
        }
    }

    fn answer(&mut self, at: usize) -> &mut Answer {
        if self.answers.len() <= at {
            self.answers.resize_with(at + 1, Answer::default);
        }
        &mut self.answers[at]
    }

    /// Returns whether the last event has come.
    pub fn is_over(&self) -> bool {
        self.usage.is_some() || self.failed.is_some()
    }

    /// The finished answers.
    ///
    /// # Errors
    /// The request failed, or ended without its last event.
    pub fn generations(self) -> Result<Vec<Generation>> {
        let usage = match (self.failed, self.usage) {
            (Some(error), _) => return Err(error),
            (None, None) => return Err(abandoned()),
            (None, Some(usage)) => usage,
        };
        let one = |answer: Answer| Generation {
            text: answer.text,
            ids: answer.ids,
            stop: answer.stop.unwrap_or(Stop::Receiver),
            prompt_tokens: usage.prompt_tokens,
            prefill_s: usage.prefill_s,
            decode_s: usage.decode_s,
        };
        Ok(self.answers.into_iter().map(one).collect())
    }
}

/// Creates a sink that collects the events of a request with this number of answers on the service's own thread, and
/// the reader's end, which is woken once, when the request has ended.
pub fn collect_output(answers: usize) -> (Sink, PendingOutput) {
    let (to, receive) = channel();
    let mut collector = Collector { output: RequestOutput::of(answers), to };
    (Box::new(move |event| collector.push(event)), PendingOutput(receive))
}

struct Collector {
    output: RequestOutput,
    to: Sender<RequestOutput>,
}

impl Collector {
    fn push(&mut self, event: Event) {
        self.output.push(event);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // The reader may be gone.
        _ = self.to.send(mem::take(&mut self.output));
    }
}

/// The reader's end of a request whose events are collected.
pub struct PendingOutput(Receiver<RequestOutput>);

/// Waits for requests, whose tickets the caller holds; returns their outputs, in order. `None` once `wanted`, which is asked
/// at first and several times a second, has returned false.
///
/// # Errors
/// The first request that failed, or ended without its last event.
pub fn outputs_while<'a>(
    open: impl IntoIterator<Item = &'a PendingOutput>,
    wanted: &dyn Fn() -> bool,
) -> Result<Option<Vec<RequestOutput>>> {
    if !wanted() {
        return Ok(None);
    }
    let (mut all, mut next) = (Vec::new(), Instant::now() + POLL);
    for PendingOutput(receive) in open {
        let output = loop {
            match receive.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(output) => break output,
                Err(RecvTimeoutError::Disconnected) => return Err(abandoned()),
                Err(RecvTimeoutError::Timeout) if !wanted() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => next = Instant::now() + POLL,
            }
        };
        if !output.is_over() {
            return Err(abandoned());
        }
        match output.failed {
            Some(error) => return Err(error),
            None => all.push(output),
        }
    }
    Ok(Some(all))
}

/// Error of a request whose model failed before the last event.
pub(super) fn abandoned() -> Error {
    Error::Gone { what: "the model failed while it worked on this request".into() }
}
