//! What is asked of a model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What to continue: text, or token ids of the product's own tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Text; the product adds its begin-of-text token where its tokenizer says so.
    Text(String),
    /// Ids, taken as they are.
    Ids(Vec<u32>),
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

/// How the next token is chosen, and when the answer ends. What changes logits applies in this order: repetition, frequency and
/// presence penalty, bias, structure, temperature, top-k, top-p, min-p, typical (the order of Transformers and vLLM).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token (ties: the lowest id).
    pub temperature: f64,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f64,
    /// Drops tokens less likely than this share of the most likely one; 0 drops none.
    pub min_p: f64,
    /// Keeps the tokens whose surprise is nearest to the entropy until their probability reaches this (Meister et al., 2023,
    /// arXiv:2202.00666); 1 keeps all.
    pub typical_p: f64,
    /// Divides positive and multiplies negative logits of tokens already seen, in prompt or answer; 1 changes nothing.
    pub repetition_penalty: f64,
    /// Subtracted from a token's logit for each time that the answer has it.
    pub frequency_penalty: f64,
    /// Subtracted from the logit of every token that the answer has.
    pub presence_penalty: f64,
    /// Added to the logits of these tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Same seed, prompt and settings: same tokens, whatever else runs at the time.
    pub seed: u64,
    /// Most tokens to generate; with 0 the prompt is read and nothing follows it.
    pub max_tokens: usize,
    /// Tokens that are generated before an end-of-text token or stop text may end the answer.
    pub min_tokens: usize,
    /// Generation ends where one of these texts would appear; it is not part of the answer.
    pub stop: Vec<String>,
    /// Generation ends at one of these tokens, as at the tokenizer's own; they are not part of the answer.
    pub stop_ids: Vec<u32>,
    /// The tokenizer's end-of-text tokens end nothing and are part of the answer.
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

/// Settings of sampling as far as they are given.
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
    /// Those of another with what is given here in their place.
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

/// What an answer's text has to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// Any JSON object.
    JsonObject,
    /// JSON that meets this schema, which is JSON itself.
    JsonSchema(String),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this grammar, in Lark's notation.
    Grammar(String),
}

/// When a search over beams ends before its longest answer, as Transformers' `early_stopping` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStopping {
    /// Where the best open beam, ended now, would score below all finished answers (`false`).
    #[default]
    Likely,
    /// With as many finished answers as there are beams (`true`).
    First,
    /// Where no open beam could reach a finished answer's score at any length (`"never"`).
    Never,
}

/// A search for the likeliest answers in place of a draw: the `width` likeliest beginnings are followed side by side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beams {
    /// Beginnings that are followed.
    pub width: usize,
    /// An answer's score is the sum of its tokens' log-probabilities over its number of tokens to this power.
    pub length_penalty: f64,
    /// When the search ends.
    pub early_stopping: EarlyStopping,
}

/// A generation to make: one or several answers to a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// What to continue.
    pub prompt: Prompt,
    /// How to choose tokens, and when to end.
    #[serde(default)]
    pub sampling: Sampling,
    /// Answers; each is sampled with a seed of its own, the first with [`Sampling::seed`].
    #[serde(default = "one")]
    pub answers: usize,
    /// A search for the likeliest answers, of which the best are given at its end; none draws each.
    #[serde(default)]
    pub beams: Option<Beams>,
    /// Alternatives of each new token that are reported, with their log-probabilities; `Some(0)` reports the chosen token's alone.
    #[serde(default)]
    pub logprobs: Option<usize>,
    /// Log-probabilities of new tokens are of the distribution that each was drawn from, among the tokens alone that top-k, top-p and
    /// min-p kept, which are reported with them ([`crate::TokenLogprob::kept`]). For training, and for answers that nothing else changes.
    #[serde(default)]
    pub kept: bool,
    /// Log-probabilities of the prompt's tokens, of which the first has none.
    #[serde(default)]
    pub prompt_logprobs: Option<usize>,
    /// What the answer has to be.
    #[serde(default)]
    pub structure: Option<Structure>,
    /// Special tokens that are part of an answer's text, as they are spelled; the others are left out of it.
    #[serde(default)]
    pub shown: Vec<String>,
    /// The adapter to answer with; none for the model as it is.
    #[serde(default)]
    pub adapter: Option<String>,
    /// Higher ones run first; waiting raises it.
    #[serde(default)]
    pub priority: i32,
    /// What was computed for a prompt's beginning is used again among requests with the same scope alone.
    #[serde(default)]
    pub scope: String,
    /// Seconds after which the request ends with what it has; none without a limit.
    #[serde(default)]
    pub deadline_s: Option<f64>,
}

fn one() -> usize {
    1
}

impl GenerateRequest {
    /// One answer to a prompt.
    pub fn new(prompt: impl Into<Prompt>, sampling: Sampling) -> GenerateRequest {
        GenerateRequest {
            prompt: prompt.into(),
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

    /// Sequences that are written for it at once, at most.
    pub fn sequences(&self) -> usize {
        self.beams.map_or(self.answers, |beams| beams.width)
    }

    /// A greedy continuation of at most `max_tokens`.
    pub fn greedy(prompt: impl Into<Prompt>, max_tokens: usize) -> GenerateRequest {
        GenerateRequest::new(prompt, Sampling { max_tokens, ..Sampling::default() })
    }
}
