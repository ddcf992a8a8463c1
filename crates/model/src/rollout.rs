//! Interface between the training loop and an engine that generates text with the weights being trained. Neither
//! knows the other.

use crate::loaded::ModelView;

/// A request for answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutRequest {
    /// Token ids of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// A seed per prompt. The same seed, prompt and weights give the same answers, independent of other requests.
    pub seeds: Vec<u64>,
    /// Number of answers per prompt.
    pub answers: usize,
    /// Most tokens per answer.
    pub max_tokens: usize,
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f64,
    /// Then drops tokens below this fraction of the most likely one's probability; 0 drops none.
    pub min_p: f64,
    /// Returns the kept tokens, with log-probabilities normalised over them.
    pub kept: bool,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutAnswer {
    /// Its tokens, including the one that ends the text.
    pub ids: Vec<u32>,
    /// Natural log-probability of each token, under the model at the temperature; at temperature 0 under the unscaled
    /// model.
    pub logps: Vec<f32>,
    /// Concatenated bit masks of the tokens that each one was sampled from ([`fathom_tensor::choice::Choose::kept`]),
    /// if requested.
    pub kept: Vec<u8>,
    /// Its text, without the end token.
    pub text: String,
    /// Whether it ended by itself, not at the token limit.
    pub ended: bool,
}

/// Reason for failing to answer.
pub type RolloutError = Box<dyn std::error::Error + Send + Sync>;

/// Generates answers with borrowed weights. A collective: ranks that share a model make the same request, and all of
/// them get the answers.
pub trait Rollout {
    /// The answers to each prompt, in order.
    ///
    /// # Errors
    /// A prompt that is too long, no memory for the answers, or non-finite logits.
    fn rollout(
        &self,
        weights: ModelView<'_>,
        asked: &RolloutRequest,
    ) -> Result<Vec<Vec<RolloutAnswer>>, RolloutError>;
}
