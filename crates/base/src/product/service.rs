//! A model that serves many concurrent requests, from any thread: a [`Service`], by what is asked of it.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};

use super::answer::{Generation, Sink, Ticket};
use super::card::{Load, ModelCard};
use super::output::{RequestOutput, abandoned, collect_output, outputs_while};
use super::relay::POLL;
use super::request::{Conversation, GenerateRequest, Prompt, PromptPart};
use crate::error::Result;

/// Receives vectors or scores, one per text of a request, or an error.
pub type VectorSink = Box<dyn FnOnce(Result<Vec<Vec<f32>>>) + Send>;

/// Interpretation of special tokens when a text is tokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Every character is ordinary text.
    Text,
    /// Spellings of special tokens denote those tokens, and no tokens are added; for rendered templates.
    Rendered,
    /// Like `Rendered`, with a leading beginning-of-text token if the tokenizer requires it.
    Prompt,
}

/// Description of a served model.
pub trait Describe: Send + Sync {
    /// Facts that change only with its adapters.
    fn card(&self) -> ModelCard;

    /// Current load.
    fn load(&self) -> Load;
}

/// Conversion between text and a model's token ids.
pub trait Tokenize: Describe {
    /// Token ids of a text.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    fn encode(&self, text: &str, reading: SpecialTokens) -> Result<Vec<u32>>;

    /// Text of token ids, with special tokens spelled out.
    ///
    /// # Errors
    /// An id is not in the vocabulary.
    fn decode(&self, ids: &[u32]) -> Result<String>;

    /// Bytes of a token, which need not be whole characters.
    fn token_bytes(&self, id: u32) -> Vec<u8>;

    /// Renders a conversation with the model's own template, with special tokens spelled out.
    ///
    /// # Errors
    /// The model has no template, or the template rejects the conversation.
    fn render(&self, conversation: &Conversation) -> Result<String>;

    /// Token ids of a prompt; of an empty text, the token that begins texts, if there is one. A source ends with the end
    /// of texts.
    ///
    /// # Errors
    /// Those of [`encode`](Tokenize::encode) and [`render`](Tokenize::render).
    fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let part = |(at, part): (usize, &PromptPart)| match part {
            PromptPart::Ids(ids) => Ok(ids.clone()),
            PromptPart::Text(text) if at > 0 => self.encode(text, SpecialTokens::Text),
            PromptPart::Text(text) => {
                Ok([self.encode("", SpecialTokens::Prompt)?, self.encode(text, SpecialTokens::Text)?]
                    .concat())
            }
        };
        let mut ids = match prompt {
            Prompt::Ids(ids) => return Ok(ids.clone()),
            Prompt::Text(text) => self.encode(text, SpecialTokens::Prompt)?,
            Prompt::Conversation(talk) => self.encode(&self.render(talk)?, SpecialTokens::Rendered)?,
            Prompt::Parts(parts) => parts.iter().enumerate().map(part).collect::<Result<Vec<_>>>()?.concat(),
        };
        let card = self.card();
        if card.source {
            ids.extend(card.eos.first().filter(|end| ids.last() != Some(end)));
        } else if ids.is_empty() && matches!(prompt, Prompt::Text(_)) {
            ids.extend(card.bos);
        }
        Ok(ids)
    }
}

/// Generation of text. A guardrail wraps this trait and nothing else can generate.
pub trait Generate: Send + Sync {
    /// Queues a request; `sink` receives its events. Long preparations are aborted before queueing once `wanted`
    /// returns false, as when the client has disconnected.
    ///
    /// # Errors
    /// The request requires something that the model lacks or the settings forbid, or the queue is full
    /// ([`crate::Error::Busy`]). In these cases nothing was queued.
    fn submit_while(&self, request: GenerateRequest, sink: Sink, wanted: &dyn Fn() -> bool)
    -> Result<Ticket>;

    /// Queues a request; `sink` receives its events.
    ///
    /// # Errors
    /// Same as [`Generate::submit_while`].
    fn submit(&self, request: GenerateRequest, sink: Sink) -> Result<Ticket> {
        self.submit_while(request, sink, &|| true)
    }

    /// Answers several requests, computed together, and waits for them; returns everything that each one's events
    /// reported, in order. `None` once `wanted`, which is asked several times a second, has returned false; the requests
    /// are then cancelled.
    ///
    /// # Errors
    /// The first request that is refused or fails.
    fn outputs_while(
        &self,
        requests: Vec<GenerateRequest>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<RequestOutput>>> {
        let mut open = Vec::with_capacity(requests.len());
        for request in requests {
            let (sink, collected) = collect_output(request.answers);
            open.push((collected, self.submit_while(request, sink, wanted)?));
        }
        outputs_while(open.iter().map(|(collected, _)| collected), wanted)
    }

    /// The answers alone of [`Generate::outputs_while`].
    ///
    /// # Errors
    /// The same.
    fn generate_while(
        &self,
        requests: Vec<GenerateRequest>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Vec<Generation>>>> {
        let outputs = self.outputs_while(requests, wanted)?;
        outputs.map(|all| all.into_iter().map(RequestOutput::generations).collect()).transpose()
    }
}

/// Numbers of given texts.
pub trait Evaluate: Send + Sync {
    /// Token ids of a text or a pair for [`numbers`](Evaluate::numbers), truncated to `most` tokens if given: in a
    /// pair the longer text loses its last tokens first.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    fn read(&self, text: &TextPair, asked: Numbers, most: Option<usize>) -> Result<TextIds>;

    /// Computes numbers for each text, in order.
    ///
    /// # Errors
    /// Same as [`Generate::submit_while`]; or a text has no tokens or exceeds the context, or the model has no labels.
    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket>;

    /// Computes numbers for each text and waits for them. `None` once `wanted`, which is asked several times a second,
    /// has returned false.
    ///
    /// # Errors
    /// Those of [`numbers`](Evaluate::numbers); or the model fails.
    fn look_while(
        &self,
        texts: Vec<TextIds>,
        asked: Numbers,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Vec<f32>>>> {
        let (send, receive) = channel();
        let _ticket = self.numbers(texts, asked, Box::new(move |rows| _ = send.send(rows)))?;
        loop {
            match receive.recv_timeout(POLL) {
                Ok(rows) => return rows.map(Some),
                Err(RecvTimeoutError::Disconnected) => return Err(abandoned()),
                Err(RecvTimeoutError::Timeout) if !wanted() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Changes of a served model.
pub trait Administer: Send + Sync {
    /// Loads an adapter from a folder under a name.
    ///
    /// # Errors
    /// The folder is not an adapter or belongs to another model, or there is no room for it.
    fn load_adapter(&self, name: &str, folder: &Path) -> Result<()>;

    /// Unloads an adapter once the requests using it have ended.
    ///
    /// # Errors
    /// No adapter has this name.
    fn unload_adapter(&self, name: &str) -> Result<()>;

    /// Erases the cached prompt prefixes, in memory and on disk; returns the number of erased bytes on disk.
    ///
    /// # Errors
    /// The service has stopped.
    fn erase_prefixes(&self) -> Result<u64>;
}

/// A model behind a queue, asked from any thread.
pub trait Service: Describe + Tokenize + Generate + Evaluate + Administer {}

impl<T: Describe + Tokenize + Generate + Evaluate + Administer> Service for T {}

/// A text, or two that are judged together.
pub type TextPair = (String, Option<String>);

/// Token ids of a text, or of two that are judged together, including the tokens that the tokenizer adds around them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextIds {
    /// All token ids.
    pub ids: Vec<u32>,
    /// Number of ids of the first text; the others have the second token type, if the model has types. An
    /// encoder-decoder reads the first as its source, and the others are its answer.
    pub first: usize,
}

impl From<Vec<u32>> for TextIds {
    fn from(ids: Vec<u32>) -> TextIds {
        TextIds { first: ids.len(), ids }
    }
}

/// Kind of numbers computed for a text. All but the first three are as the model computes them, in token order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numbers {
    /// A unit embedding vector.
    Vector,
    /// The probability of each of [`ModelCard::labels`], or the raw outputs of a regression model.
    Classes,
    /// Relevance of the second text to the first: one number, computed as in the model's own code.
    Relevance,
    /// Outputs of a head of scores at the text's last token.
    Scores,
    /// Two numbers per token after the first: its natural log-probability, and 1 if it is the most likely token
    /// (the first of equals), else 0.
    Logprobs,
    /// The most likely tokens at each position given those before it, best first, ties by smaller id: id and natural
    /// log-probability alternating. Zeros for the first token.
    Top {
        /// Number of tokens.
        k: usize,
        /// Divisor of the logits.
        temperature: f64,
    },
    /// Logits of the whole vocabulary at each of the last tokens.
    Logits {
        /// Number of last tokens.
        last: usize,
    },
    /// Hidden states of each token after the final norm.
    Hidden,
}
