//! A model that serves many requests at once, from any thread.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Result;
use crate::product::{Event, GenerateRequest, PartialSampling, Ticket};

/// Receives the events of a request, in the service's own thread: it must not wait.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// Receives vectors or scores, one for each text of a request, or what went wrong.
pub type VectorSink = Box<dyn FnOnce(Result<Vec<Vec<f32>>>) + Send>;

/// How a text becomes ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Every character is text.
    Text,
    /// Spellings of special tokens are those tokens; nothing is added: what a template has rendered.
    Rendered,
    /// As above, and a begin-of-text token stands first where the tokenizer says so.
    Prompt,
}

/// A model behind a queue. A server knows no more of models than this.
pub trait Service: Send + Sync {
    /// What it serves.
    fn card(&self) -> ModelCard;

    /// How full it is.
    fn load(&self) -> Load;

    /// Queues a request; `sink` gets its events.
    ///
    /// # Errors
    /// What the request asks for and the model does not have or the settings do not allow; [`crate::Error::Busy`] if the queue is
    /// full. Nothing was queued then.
    fn submit(&self, request: GenerateRequest, sink: Sink) -> Result<Ticket> {
        self.submit_while(request, sink, &|| true)
    }

    /// The same, which gives up what takes long before the request is queued once `wanted` does not hold any more: who asks may have
    /// left.
    ///
    /// # Errors
    /// As [`Service::submit`].
    fn submit_while(&self, request: GenerateRequest, sink: Sink, wanted: &dyn Fn() -> bool)
    -> Result<Ticket>;

    /// The ids of a text.
    ///
    /// # Errors
    /// The tokenizer's.
    fn encode(&self, text: &str, reading: Reading) -> Result<Vec<u32>>;

    /// The text of ids.
    ///
    /// # Errors
    /// An id that the vocabulary does not have.
    fn decode(&self, ids: &[u32]) -> Result<String>;

    /// What a token is in the vocabulary: its bytes, which need not be whole characters.
    fn token_bytes(&self, id: u32) -> Vec<u8>;

    /// A conversation as the prompt of the model's own template, special tokens spelled out.
    ///
    /// # Errors
    /// The model has no template, or it refuses the conversation.
    fn render(&self, conversation: &Conversation) -> Result<String>;

    /// The ids of a text or a pair of which numbers are asked, without what is beyond `most` tokens if it says so: of a pair the longer
    /// text loses its last tokens first.
    ///
    /// # Errors
    /// The tokenizer's.
    fn read(&self, text: &TextPair, asked: Numbers, most: Option<usize>) -> Result<TextIds>;

    /// Numbers of each text, in their order.
    ///
    /// # Errors
    /// As [`Service::submit`]; a text without tokens or beyond the context; labels asked of a model that has none.
    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket>;

    /// Loads an adapter from a folder under a name.
    ///
    /// # Errors
    /// It is none, or of another model; no room for it.
    fn load_adapter(&self, name: &str, folder: &std::path::Path) -> Result<()>;

    /// Unloads an adapter; requests that use it end first.
    ///
    /// # Errors
    /// There is none of this name.
    fn unload_adapter(&self, name: &str) -> Result<()>;

    /// Gives up the beginnings of prompts that it remembers, in memory and on disk; returns the bytes on disk that were erased.
    ///
    /// # Errors
    /// It has stopped.
    fn erase_prefixes(&self) -> Result<u64>;
}

/// A text, or two that are judged together.
pub type TextPair = (String, Option<String>);

/// A text, or two that are judged together, as a model reads them: with what its tokenizer puts around them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextIds {
    /// Ids of all.
    pub ids: Vec<u32>,
    /// So many of them are the first text's; the others are of the second token type, where a model has types.
    pub first: usize,
}

impl From<Vec<u32>> for TextIds {
    fn from(ids: Vec<u32>) -> TextIds {
        TextIds { first: ids.len(), ids }
    }
}

/// What is asked of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// A vector of length 1.
    Vector,
    /// For each of [`ModelCard::labels`] its probability, or the number that the model gives.
    Classes,
    /// How well the second text answers the first: one number, as the model's own code gives it.
    Relevance,
}

/// A conversation, to be rendered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// Messages as clients send them: objects with `role`, `content` and whatever else the template reads.
    pub messages: Vec<Value>,
    /// Tools as JSON schemas.
    pub tools: Vec<Value>,
    /// The prompt ends where the model's answer begins.
    pub add_generation_prompt: bool,
    /// The prompt ends inside the last message, which the answer continues.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub variables: serde_json::Map<String, Value>,
}

/// What a service serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Its name.
    pub name: String,
    /// Names what it computes: of weights, tokenizer and settings. Equal answers need an equal fingerprint.
    pub fingerprint: String,
    /// Tokens of prompt and answer together.
    pub context_tokens: usize,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// It generates text; otherwise it gives vectors or labels alone.
    pub generates: bool,
    /// It has a template for conversations.
    pub converses: bool,
    /// Names of the numbers of a classifier.
    pub labels: Vec<String>,
    /// Numbers of a vector.
    pub embedding: usize,
    /// Its adapters: of each its name, and what names what it computes over this model.
    pub adapters: BTreeMap<String, String>,
    /// Ids that end an answer, and that begin a text.
    pub eos: Vec<u32>,
    /// The id that begins a text.
    pub bos: Option<u32>,
    /// The token that fills batches, as it is spelled, where the tokenizer's files name one.
    pub pad_token: Option<String>,
    /// How its files say that tokens are chosen, where a request does not.
    pub sampling: PartialSampling,
    /// The source of its template for conversations.
    pub chat_template: Option<String>,
}

/// How full a service is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Tokens of prompts that wait to be computed.
    pub waiting_tokens: usize,
    /// Pages of keys and values, and those in use or kept for prefixes.
    pub pages: usize,
    /// Pages that running requests hold.
    pub pages_used: usize,
    /// Pages that hold beginnings of prompts that no running request uses.
    pub pages_cached: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Tokens a second that prompts were read with lately; 0 before the first.
    pub prefill_tokens_per_s: f64,
    /// Tokens of prompts that were looked up among the prefixes, since the start.
    pub prefix_queries: u64,
    /// Those that were found.
    pub prefix_hits: u64,
    /// Those that came back from disk, since the start.
    pub restored_tokens: u64,
    /// Bytes of beginnings of prompts on disk, of all models.
    pub stored_bytes: u64,
    /// Requests whose pages were preempted, to be recomputed.
    pub preemptions: u64,
    /// Tokens of prompts that were computed, since the start.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub answer_tokens: u64,
    /// Tokens that were guessed to follow, since the start.
    pub drafted_tokens: u64,
    /// Those of them that followed.
    pub accepted_tokens: u64,
    /// The same of the first guess of each step, the second, and so on.
    pub accepted_at: Vec<u64>,
    /// Guesses, each of one or more tokens, since the start.
    pub drafts: u64,
    /// Pages of the draft model that are in use.
    pub draft_pages_used: usize,
    /// Tokens of each step lately, the last one last.
    pub step_tokens: Vec<u32>,
}
