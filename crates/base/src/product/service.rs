//! A model that serves many concurrent requests, from any thread.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Result;
use crate::product::{Event, GenerateRequest, PartialSampling, Ticket};

/// Receives the events of a request on the service's own thread; must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// Receives vectors or scores, one per text of a request, or an error.
pub type VectorSink = Box<dyn FnOnce(Result<Vec<Vec<f32>>>) + Send>;

/// Interpretation of special tokens when a text is tokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Every character is ordinary text.
    Text,
    /// Spellings of special tokens denote those tokens, and no tokens are added; for rendered templates.
    Rendered,
    /// Like `Rendered`, with a leading beginning-of-text token if the tokenizer requires it.
    Prompt,
}

/// A model behind a queue: the only interface that a server needs.
pub trait Service: Send + Sync {
    /// Description of the served model.
    fn card(&self) -> ModelCard;

    /// Current load.
    fn load(&self) -> Load;

    /// Queues a request; `sink` receives its events.
    ///
    /// # Errors
    /// The request requires something that the model lacks or the settings forbid, or the queue is full
    /// ([`crate::Error::Busy`]). In these cases nothing was queued.
    fn submit(&self, request: GenerateRequest, sink: Sink) -> Result<Ticket> {
        self.submit_while(request, sink, &|| true)
    }

    /// Like [`submit`](Service::submit), aborting long preparations before queueing once `wanted` returns false, as
    /// when the client has disconnected.
    ///
    /// # Errors
    /// Same as [`Service::submit`].
    fn submit_while(&self, request: GenerateRequest, sink: Sink, wanted: &dyn Fn() -> bool)
    -> Result<Ticket>;

    /// Token ids of a text.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    fn encode(&self, text: &str, reading: Reading) -> Result<Vec<u32>>;

    /// Text of token ids.
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

    /// Token ids of a text or a pair for [`numbers`](Service::numbers), truncated to `most` tokens if given: in a
    /// pair the longer text loses its last tokens first.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    fn read(&self, text: &TextPair, asked: Numbers, most: Option<usize>) -> Result<TextIds>;

    /// Computes numbers for each text, in order.
    ///
    /// # Errors
    /// Same as [`Service::submit`]; or a text has no tokens or exceeds the context, or the model has no labels.
    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket>;

    /// Loads an adapter from a folder under a name.
    ///
    /// # Errors
    /// The folder is not an adapter or belongs to another model, or there is no room for it.
    fn load_adapter(&self, name: &str, folder: &std::path::Path) -> Result<()>;

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

/// A text, or two that are judged together.
pub type TextPair = (String, Option<String>);

/// Token ids of a text, or of two that are judged together, including the tokens that the tokenizer adds around them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextIds {
    /// All token ids.
    pub ids: Vec<u32>,
    /// Number of ids of the first text; the others have the second token type, if the model has types.
    pub first: usize,
}

impl From<Vec<u32>> for TextIds {
    fn from(ids: Vec<u32>) -> TextIds {
        TextIds { first: ids.len(), ids }
    }
}

/// Kind of numbers computed for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// A unit embedding vector.
    Vector,
    /// The probability of each of [`ModelCard::labels`], or the raw outputs of a regression model.
    Classes,
    /// Relevance of the second text to the first: one number, computed as in the model's own code.
    Relevance,
}

/// A conversation to be rendered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// Messages as sent by clients: objects with `role`, `content` and any other keys read by the template.
    pub messages: Vec<Value>,
    /// Tool definitions as JSON schemas.
    pub tools: Vec<Value>,
    /// Ends the prompt where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Ends the prompt inside the last message, which the answer continues.
    pub continue_final_message: bool,
    /// Additional variables of the template.
    pub variables: serde_json::Map<String, Value>,
}

/// Description of a served model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Name of the model.
    pub name: String,
    /// Fingerprint of weights, tokenizer and settings. Equal answers require equal fingerprints.
    pub fingerprint: String,
    /// Maximum number of prompt and answer tokens together.
    pub context_tokens: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// True if it generates text; otherwise it only returns vectors or labels.
    pub generates: bool,
    /// True if it has a chat template.
    pub converses: bool,
    /// Label names of a classifier.
    pub labels: Vec<String>,
    /// Dimensions of an embedding vector.
    pub embedding: usize,
    /// Adapters by name, with the fingerprint of each on top of this model.
    pub adapters: BTreeMap<String, String>,
    /// Ids that end an answer.
    pub eos: Vec<u32>,
    /// Id that begins a text.
    pub bos: Option<u32>,
    /// Padding token by its spelling, if the tokenizer's files name one.
    pub pad_token: Option<String>,
    /// Default sampling settings from its files.
    pub sampling: PartialSampling,
    /// Source of its chat template.
    pub chat_template: Option<String>,
}

/// Load of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Number of running requests.
    pub running: usize,
    /// Number of waiting requests.
    pub waiting: usize,
    /// Number of prompt tokens waiting to be processed.
    pub waiting_tokens: usize,
    /// Total number of pages of the key/value cache.
    pub pages: usize,
    /// Pages held by running requests.
    pub pages_used: usize,
    /// Pages with cached prefixes that no running request uses.
    pub pages_cached: usize,
    /// Tokens per page.
    pub page_tokens: usize,
    /// Recent prefill rate in tokens per second; 0 before the first.
    pub prefill_tokens_per_s: f64,
    /// Prompt tokens looked up in the prefix cache since the start.
    pub prefix_queries: u64,
    /// Prompt tokens found there.
    pub prefix_hits: u64,
    /// Tokens restored from disk since the start.
    pub restored_tokens: u64,
    /// Bytes of stored prefixes on disk, over all models.
    pub stored_bytes: u64,
    /// Number of preempted requests whose pages are recomputed.
    pub preemptions: u64,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Generated tokens.
    pub answer_tokens: u64,
    /// Draft tokens proposed since the start.
    pub drafted_tokens: u64,
    /// Draft tokens accepted.
    pub accepted_tokens: u64,
    /// Accepted draft tokens by position: first of each step, second, and so on.
    pub accepted_at: Vec<u64>,
    /// Number of drafts, each of one or more tokens, since the start.
    pub drafts: u64,
    /// Pages of the draft model in use.
    pub draft_pages_used: usize,
    /// Tokens per recent step, the latest last.
    pub step_tokens: Vec<u32>,
}
