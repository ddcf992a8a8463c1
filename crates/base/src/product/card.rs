//! Description and load of a served model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::request::PartialSampling;

/// Description of a served model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Name of the model.
    pub name: String,
    /// Fingerprint of weights, tokenizer and settings. Equal answers require equal fingerprints.
    pub fingerprint: String,
    /// Maximum number of prompt and answer tokens together; of each, if it has a source.
    pub context_tokens: usize,
    /// True if a prompt is the source of an encoder-decoder, a stream of its own that ends with the end of texts.
    pub source: bool,
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

impl ModelCard {
    /// Maximum number of answer tokens after a prompt.
    pub fn answer_room(&self, prompt_tokens: usize) -> usize {
        match self.source {
            // The answer's stream begins with a token of its own.
            true if prompt_tokens <= self.context_tokens => self.context_tokens.saturating_sub(1),
            true => 0,
            false => self.context_tokens.saturating_sub(prompt_tokens),
        }
    }
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
