//! Answers of a model.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Decision of the receiver of streamed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue generating.
    Continue,
    /// End here; the text so far is the answer.
    Stop,
}

/// Reason why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The model generated its end-of-text token.
    EndOfText,
    /// The model generated this one of [`crate::Sampling::stop_ids`].
    StopToken(u32),
    /// This stop text would have appeared: the earliest, or the first one named among those that begin at the same
    /// place.
    StopText(String),
    /// `max_tokens` or the end of the context was reached.
    Length,
    /// The structure was complete.
    Structure,
    /// The request's deadline passed.
    Deadline,
    /// The receiver returned [`Flow::Stop`], or dropped its [`Ticket`].
    Receiver,
    /// A rail refused the prompt or the answer.
    Refused {
        /// Name of the rail.
        rail: String,
        /// Its reason.
        why: String,
    },
}

/// A token with its natural log-probability under the unmodified model: before penalties, bias, structure and
/// temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Id of the token.
    pub id: u32,
    /// Its log-probability; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
    /// Rank among all tokens, 0 for the most likely one.
    pub rank: Option<u32>,
    /// Most likely tokens at this position, most likely first.
    pub top: Vec<(u32, f32)>,
    /// Bit set of the candidate tokens of the draw, beginning with the lowest bit of the first byte, if requested.
    pub kept: Vec<u8>,
}

/// Events of a request, in this order: [`Event::Started`], the pieces and the end of each answer, [`Event::Done`]; or
/// at any time [`Event::Failed`], which is the last event.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The prompt was processed.
    Started {
        /// Tokens of the prompt.
        prompt: Vec<u32>,
        /// Number of leading tokens that were cached.
        cached_tokens: usize,
        /// Log-probabilities of its tokens, if requested.
        logprobs: Vec<TokenLogprob>,
    },
    /// The next piece of an answer.
    Piece {
        /// Index of the answer, from 0.
        answer: usize,
        /// Final text (whole characters, never the beginning of a stop text); the concatenated pieces are the
        /// answer's text. May be empty.
        text: String,
        /// Tokens generated since the last piece.
        ids: Vec<u32>,
        /// Log-probabilities of these tokens, if requested.
        logprobs: Vec<TokenLogprob>,
    },
    /// An answer ended.
    Ended {
        /// Index of the answer.
        answer: usize,
        /// Reason for the end.
        stop: Stop,
    },
    /// All answers ended.
    Done(Usage),
    /// The request failed. Serialized as its message.
    #[serde(with = "message")]
    Failed(Error),
}

/// An error as its message; read back as [`Error::Product`].
mod message {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::error::Error;

    pub fn serialize<S: Serializer>(error: &Error, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(error)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Error, D::Error> {
        Ok(Error::product(String::deserialize(from)?))
    }
}

/// Receives the events of a request on the service's own thread; must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// Resources used by a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that were cached.
    pub cached_tokens: usize,
    /// Number of tokens in all answers.
    pub answer_tokens: usize,
    /// Seconds before the computation of the prompt began.
    pub queue_s: f64,
    /// Seconds from there to the first new token.
    pub prefill_s: f64,
    /// Seconds for the tokens after the first.
    pub decode_s: f64,
}

/// Handle of a running request: dropping it cancels the request, whose pages and place in the batch are freed within
/// a step.
#[must_use = "a request is cancelled when its ticket is dropped"]
pub struct Ticket(Option<Box<dyn FnOnce() + Send>>);

impl Ticket {
    /// Creates a ticket that calls `cancel` when it is dropped.
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
    /// Generated text, without the prompt and the stop text.
    pub text: String,
    /// Generated token ids, without the end-of-text token.
    pub ids: Vec<u32>,
    /// Reason why it ended.
    pub stop: Stop,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Seconds to the first new token.
    pub prefill_s: f64,
    /// Seconds for the tokens after the first.
    pub decode_s: f64,
}
