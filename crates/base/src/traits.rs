//! The traits that products meet at. A server, a rail or an evaluation works with any of these and never
//! learns which engine, machine or network is behind. All are object-safe.

use serde::{Deserialize, Serialize};

use crate::error::Result;

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

/// How the next token is chosen. Filters apply in this order: repetition penalty, temperature, top-k, top-p,
/// min-p (the order of Transformers).
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
    /// Divides positive and multiplies negative logits of tokens already seen; 1 changes nothing.
    pub repetition_penalty: f64,
    /// Same seed, prompt and settings: same tokens.
    pub seed: u64,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Generation ends where one of these texts would appear; it is not part of the answer.
    pub stop: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            max_tokens: 256,
            stop: Vec::new(),
        }
    }
}

/// One generation to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// What to continue.
    pub prompt: Prompt,
    /// How to choose tokens, and when to end.
    #[serde(default)]
    pub sampling: Sampling,
}

impl GenerateRequest {
    /// A greedy continuation of at most `max_tokens`.
    pub fn greedy(prompt: impl Into<Prompt>, max_tokens: usize) -> GenerateRequest {
        let sampling = Sampling { max_tokens, ..Sampling::default() };
        GenerateRequest { prompt: prompt.into(), sampling }
    }
}

/// What the receiver of streamed text wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// End here; the text so far is the answer.
    Stop,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The model wrote its end-of-text token.
    EndOfText,
    /// One of the stop texts would have appeared.
    StopText,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The receiver said [`Flow::Stop`].
    Receiver,
}

/// A finished generation.
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

/// Continues text.
pub trait Generate {
    /// Generates until a stop, calling `on_text` with each piece of text that is certain (whole characters,
    /// and never the beginning of a stop text). The pieces joined are the answer's text.
    ///
    /// # Errors
    /// [`crate::Error::Product`] with the product's own message.
    fn generate(
        &mut self,
        request: &GenerateRequest,
        on_text: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Generation>;
}

/// Says how likely given text is.
pub trait Score {
    /// The negative natural log-probability of each of `ids[1..]` given everything before it, in one pass:
    /// `ids.len() - 1` values, none for fewer than two ids.
    ///
    /// # Errors
    /// [`crate::Error::Product`] with the product's own message.
    fn losses(&mut self, ids: &[u32]) -> Result<Vec<f64>>;

    /// The longest text that can be scored, in tokens.
    fn max_tokens(&self) -> usize;
}

/// Turns text into vectors.
pub trait Embed {
    /// One vector of [`Embed::size`] numbers per text, of length 1.
    ///
    /// # Errors
    /// [`crate::Error::Product`] with the product's own message.
    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>>;

    /// Numbers in a vector.
    fn size(&self) -> usize;
}

/// Sorts texts by labels.
pub trait Classify {
    /// For each text one number per label: its probability, or what a model that gives numbers says.
    ///
    /// # Errors
    /// [`crate::Error::Product`] with the product's own message.
    fn classify(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>>;

    /// What the labels are called, in the order of the numbers.
    fn labels(&self) -> &[String];
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Generate for Echo {
        fn generate(
            &mut self,
            request: &GenerateRequest,
            on_text: &mut dyn FnMut(&str) -> Flow,
        ) -> Result<Generation> {
            let Prompt::Text(text) = &request.prompt else { return Err(crate::Error::product("ids")) };
            let stop = if on_text(text) == Flow::Stop { Stop::Receiver } else { Stop::EndOfText };
            let (ids, prompt_tokens) = (vec![1], 1);
            Ok(Generation { text: text.clone(), ids, stop, prompt_tokens, prefill_s: 0.0, decode_s: 0.0 })
        }
    }

    #[test]
    fn is_object_safe_and_reports_product_errors() {
        let mut product: Box<dyn Generate> = Box::new(Echo);
        let mut seen = String::new();
        let request = GenerateRequest::greedy("hello", 4);
        let done = product.generate(&request, &mut |piece| {
            seen.push_str(piece);
            Flow::Continue
        });
        assert_eq!((done.unwrap().stop, seen.as_str()), (Stop::EndOfText, "hello"));
        let refused = product.generate(&GenerateRequest::greedy(vec![1], 4), &mut |_| Flow::Continue);
        assert_eq!(refused.unwrap_err().to_string(), "ids");
    }

    #[test]
    fn sampling_refuses_unknown_settings() {
        assert!(serde_json::from_str::<Sampling>(r#"{"temprature": 1}"#).is_err());
        let greedy: Sampling = serde_json::from_str("{}").unwrap();
        assert_eq!(greedy, Sampling::default());
    }
}
