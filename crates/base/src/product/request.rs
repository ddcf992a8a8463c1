//! Requests to a model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Beginning of a text that a model continues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Text; a beginning-of-text token is added if the tokenizer requires it.
    Text(String),
    /// Token ids of the model's own tokenizer, used unchanged.
    Ids(Vec<u32>),
    /// A conversation, rendered with the model's own chat template.
    Conversation(Conversation),
    /// Parts, one after another. A beginning-of-text token is added before a text part that comes first.
    Parts(Vec<PromptPart>),
}

/// Part of a [`Prompt`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptPart {
    /// Text, in which spellings of special tokens are ordinary characters.
    Text(String),
    /// Token ids, used unchanged.
    Ids(Vec<u32>),
}

impl Prompt {
    /// Upper estimate of its tokens before it is tokenized: one per byte of text.
    pub fn most_tokens(&self) -> usize {
        let part = |part: &PromptPart| match part {
            PromptPart::Text(text) => text.len(),
            PromptPart::Ids(ids) => ids.len(),
        };
        match self {
            Prompt::Text(text) => text.len(),
            Prompt::Ids(ids) => ids.len(),
            Prompt::Conversation(talk) => talk.messages.iter().map(|message| message.to_string().len()).sum(),
            Prompt::Parts(parts) => parts.iter().map(part).sum(),
        }
    }
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

impl From<Conversation> for Prompt {
    fn from(conversation: Conversation) -> Prompt {
        Prompt::Conversation(conversation)
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_string())
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Prompt {
        Prompt::Ids(ids)
    }
}

/// Token selection and termination. Logits are modified in this order: repetition, frequency and presence penalty,
/// bias, structure, temperature, top-k, top-p, min-p, typical (the order of Transformers and vLLM).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Divisor of the logits; 0 selects the most likely token (ties: the lowest id).
    pub temperature: f64,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f64,
    /// Drops tokens whose probability is below this fraction of the most likely one's; 0 drops none.
    pub min_p: f64,
    /// Keeps the tokens whose surprise is nearest to the entropy until their total probability reaches this (Meister
    /// et al., 2023, arXiv:2202.00666); 1 keeps all.
    pub typical_p: f64,
    /// Divides positive and multiplies negative logits of tokens already present in prompt or answer; 1 changes
    /// nothing.
    pub repetition_penalty: f64,
    /// Subtracted from a token's logit once per occurrence in the answer.
    pub frequency_penalty: f64,
    /// Subtracted from the logit of every token present in the answer.
    pub presence_penalty: f64,
    /// Added to the logits of these tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed. Equal seeds, prompts and settings give equal tokens, regardless of concurrent requests.
    pub seed: u64,
    /// Maximum number of generated tokens; 0 only processes the prompt.
    pub max_tokens: usize,
    /// Minimum number of tokens before an end-of-text token or stop text may end the answer.
    pub min_tokens: usize,
    /// Texts that end generation where they would appear; they are not part of the answer.
    pub stop: Vec<String>,
    /// Tokens that end generation like the tokenizer's end-of-text tokens; they are not part of the answer.
    pub stop_ids: Vec<u32>,
    /// Continues after the tokenizer's end-of-text tokens, which become part of the answer.
    pub ignore_eos: bool,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
            max_tokens: 256,
            min_tokens: 0,
            stop: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
        }
    }
}

/// A subset of sampling settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartialSampling {
    /// [`Sampling::temperature`].
    pub temperature: Option<f64>,
    /// [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// [`Sampling::top_p`].
    pub top_p: Option<f64>,
    /// [`Sampling::min_p`].
    pub min_p: Option<f64>,
    /// [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f64>,
}

impl PartialSampling {
    /// Overrides the settings of `other` by those given here.
    pub fn on(&self, other: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(other.temperature),
            top_k: self.top_k.unwrap_or(other.top_k),
            top_p: self.top_p.unwrap_or(other.top_p),
            min_p: self.min_p.unwrap_or(other.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(other.repetition_penalty),
            ..other
        }
    }
}

/// Required structure of an answer's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid under this schema, itself given as JSON.
    JsonSchema(String),
    /// Text that matches this regular expression completely.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of this grammar in Lark's notation.
    Grammar(String),
}

/// Termination rule of a beam search, as in Transformers' `early_stopping`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStopping {
    /// Ends when the best open beam, if ended now, would score below all finished answers (`false`).
    #[default]
    Likely,
    /// Ends when there are as many finished answers as beams (`true`).
    First,
    /// Ends when no open beam can reach a finished answer's score at any length (`"never"`).
    Never,
}

/// Beam search for the most likely answers instead of sampling: the `width` most likely prefixes are extended in
/// parallel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beams {
    /// Number of beams.
    pub width: usize,
    /// Exponent of the length in an answer's score: the sum of log-probabilities divided by length to this power.
    pub length_penalty: f64,
    /// Termination rule.
    pub early_stopping: EarlyStopping,
}

/// A generation request for one or several answers to a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// Prompt to continue.
    pub prompt: Prompt,
    /// Its ids, if the same service has computed them already ([`crate::Tokenize::ids`]); cleared by whoever changes
    /// the prompt.
    #[serde(skip)]
    pub ids: Option<Vec<u32>>,
    /// Token selection and termination.
    #[serde(default)]
    pub sampling: Sampling,
    /// Number of answers; each is sampled with its own seed, the first with [`Sampling::seed`].
    #[serde(default = "one")]
    pub answers: usize,
    /// Beam search, which returns the best answers at its end; none samples each answer.
    #[serde(default)]
    pub beams: Option<Beams>,
    /// Number of alternatives reported per new token, with their log-probabilities; `Some(0)` reports only the chosen
    /// token's.
    #[serde(default)]
    pub logprobs: Option<usize>,
    /// Reports log-probabilities of new tokens under the distribution they were drawn from, restricted to the tokens
    /// kept by top-k, top-p and min-p, together with these tokens ([`crate::TokenLogprob::kept`]). For training, and
    /// only for answers without other modifications.
    #[serde(default)]
    pub kept: bool,
    /// Number of alternatives reported per prompt token, with their log-probabilities; the first token has none.
    #[serde(default)]
    pub prompt_logprobs: Option<usize>,
    /// Required structure of the answer.
    #[serde(default)]
    pub structure: Option<Structure>,
    /// Special tokens included in an answer's text, by their spelling; all others are omitted.
    #[serde(default)]
    pub shown: Vec<String>,
    /// Adapter to use; none for the base model.
    #[serde(default)]
    pub adapter: Option<String>,
    /// Priority: higher values run first; waiting increases it.
    #[serde(default)]
    pub priority: i32,
    /// Scope of the prefix cache: cached prefixes are shared only among requests of the same scope.
    #[serde(default)]
    pub scope: String,
    /// Time limit in seconds, after which the request ends with the partial answer; none for no limit.
    #[serde(default)]
    pub deadline_s: Option<f64>,
}

fn one() -> usize {
    1
}

impl GenerateRequest {
    /// Creates a request for one answer to a prompt.
    pub fn new(prompt: impl Into<Prompt>, sampling: Sampling) -> GenerateRequest {
        GenerateRequest {
            prompt: prompt.into(),
            ids: None,
            sampling,
            answers: 1,
            beams: None,
            logprobs: None,
            kept: false,
            prompt_logprobs: None,
            structure: None,
            shown: Vec::new(),
            adapter: None,
            priority: 0,
            scope: String::new(),
            deadline_s: None,
        }
    }

    /// Upper estimate of its prompt's tokens; exact if they are known.
    pub fn most_prompt_tokens(&self) -> usize {
        self.ids.as_ref().map_or_else(|| self.prompt.most_tokens(), Vec::len)
    }

    /// Maximum number of sequences generated concurrently for it.
    pub fn sequences(&self) -> usize {
        self.beams.map_or(self.answers, |beams| beams.width)
    }

    /// Creates a request for a greedy continuation of at most `max_tokens`.
    pub fn greedy(prompt: impl Into<Prompt>, max_tokens: usize) -> GenerateRequest {
        GenerateRequest::new(prompt, Sampling { max_tokens, ..Sampling::default() })
    }
}
