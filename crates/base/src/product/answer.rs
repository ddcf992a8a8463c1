//! What a model answers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What the receiver of streamed text wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// End here; the text so far is the answer.
    Stop,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The model wrote its end-of-text token.
    EndOfText,
    /// It wrote this one of [`crate::Sampling::stop_ids`].
    StopToken(u32),
    /// This one of the stop texts would have appeared: the earliest, of several that begin there the first that was named.
    StopText(String),
    /// `max_tokens`, or the end of the context.
    Length,
    /// The structure was complete.
    Structure,
    /// The request's deadline.
    Deadline,
    /// The receiver said [`Flow::Stop`], or dropped its [`Ticket`].
    Receiver,
}

/// A token with its natural log-probability under the model as it is: before penalties, bias, structure and temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Its log-probability; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
    /// Its place among all tokens, 0 for the most likely one.
    pub rank: Option<u32>,
    /// The most likely tokens there, the likeliest first.
    pub top: Vec<(u32, f32)>,
    /// Bits of the tokens that it was drawn among, the first in the lowest of the first byte, where a request asked for them.
    pub kept: Vec<u8>,
}

/// What happens to a request, in this order: [`Event::Started`], pieces and an end of each answer, [`Event::Done`]; or at any time
/// [`Event::Failed`], after which nothing follows.
#[derive(Debug)]
pub enum Event {
    /// The prompt was read.
    Started {
        /// Its tokens.
        prompt: Vec<u32>,
        /// Those of its beginning that were not computed again.
        cached_tokens: usize,
        /// Of its tokens, if asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// More of an answer.
    Piece {
        /// Which answer, from 0.
        answer: usize,
        /// Text that is certain (whole characters, never the beginning of a stop text); the pieces joined are the answer's text.
        /// May be empty.
        text: String,
        /// The tokens that were chosen since the last piece.
        ids: Vec<u32>,
        /// Of these tokens, if asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// An answer ended.
    Ended {
        /// Which.
        answer: usize,
        /// Why.
        stop: Stop,
    },
    /// All answers ended.
    Done(Usage),
    /// The request failed.
    Failed(Error),
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not computed again.
    pub cached_tokens: usize,
    /// Tokens of all answers.
    pub answer_tokens: usize,
    /// Seconds before the first token of the prompt was computed.
    pub queue_s: f64,
    /// From there to the first new token.
    pub prefill_s: f64,
    /// Seconds of the tokens after the first.
    pub decode_s: f64,
}

/// A request under way: dropping it cancels the request, whose pages and place in the batch are free within a step.
#[must_use = "a request is cancelled when its ticket is dropped"]
pub struct Ticket(Option<Box<dyn FnOnce() + Send>>);

impl Ticket {
    /// A ticket that calls this when it is dropped.
    pub fn new(cancel: impl FnOnce() + Send + 'static) -> Ticket {
        Ticket(Some(Box::new(cancel)))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel();
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

/// A finished answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// The new text, without prompt and without the stop text.
    pub text: String,
    /// The new token ids, the end-of-text token not included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub stop: Stop,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time to the first new token.
    pub prefill_s: f64,
    /// Time of the tokens after the first.
    pub decode_s: f64,
}
