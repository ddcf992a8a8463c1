//! What training asks of whatever writes text with the weights that it trains: the seam between the loop and an engine. Neither knows
//! the other.

use crate::loaded::ModelView;

/// Answers that are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Token ids of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// A seed for each. The same seed, prompt and weights give the same answers, whatever else is asked at the time.
    pub seeds: Vec<u64>,
    /// Answers to each prompt.
    pub answers: usize,
    /// Tokens of an answer at most.
    pub max_tokens: usize,
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest tokens whose share reaches this; 1 keeps all.
    pub top_p: f64,
    /// Then drops those less likely than this share of the most likely one; 0 drops none.
    pub min_p: f64,
    /// Log-probabilities are of the tokens that are kept alone, which come with them.
    pub kept: bool,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// Its tokens, the one that ends the text among them.
    pub ids: Vec<u32>,
    /// Natural log-probability of each, under the model at the temperature; at temperature 0 under the model as it is.
    pub logps: Vec<f32>,
    /// Of each one after the other, bits of the tokens that it was drawn among ([`fathom_tensor::choice::Choose::kept`]), where that was
    /// asked for.
    pub kept: Vec<u8>,
    /// Its text, without what ends it.
    pub text: String,
    /// It ended by itself, and not at the most tokens.
    pub ended: bool,
}

/// Why there are no answers.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Writes answers with weights that it borrows for as long as that takes. Ranks that have parts of one model ask for the same together,
/// and all of them have the answers.
pub trait Rollout {
    /// The answers to each prompt, in their order.
    ///
    /// # Errors
    /// A prompt that is too long, no room for the answers, a model that gives no numbers.
    fn rollout(&self, weights: ModelView<'_>, asked: &Asked) -> Result<Vec<Vec<Written>>, Failed>;
}
