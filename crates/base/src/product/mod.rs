//! Interfaces between products. A server, a guardrail or an evaluation works with any implementation and does not
//! depend on the engine, machine or network behind it. All traits are object-safe.
//!
//! [`Generate`], [`Score`], [`Embed`] and [`Classify`] serve one caller at a time; a [`Service`] serves many
//! concurrently.

mod answer;
mod request;
mod service;

pub use answer::{Event, Flow, Generation, Stop, Ticket, TokenLogprob, Usage};
pub use request::{Beams, EarlyStopping, GenerateRequest, PartialSampling, Prompt, Sampling, Structure};
pub use service::{
    Conversation, Load, ModelCard, Numbers, Reading, Service, Sink, TextIds, TextPair, VectorSink,
};

use crate::error::Result;

/// Generates continuations of text.
pub trait Generate {
    /// Generates until a stop condition, calling `on_text` with each piece of final text (whole characters, and never
    /// the beginning of a stop text). The concatenated pieces are the answer's text.
    ///
    /// # Errors
    /// [`crate::Error::Product`] with the implementation's own message.
    fn generate(
        &mut self,
        request: &GenerateRequest,
        on_text: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Generation>;
}

/// Computes the likelihood of text.
pub trait Score {
    /// Negative natural log-probability of each of `ids[1..]` given all preceding tokens, in one pass: `ids.len() -
    /// 1` values, none for fewer than two ids.
    ///
    /// # Errors
    /// [`crate::Error::Product`] with the implementation's own message.
    fn losses(&mut self, ids: &[u32]) -> Result<Vec<f64>>;

    /// Maximum length of a scored text, in tokens.
    fn max_tokens(&self) -> usize;
}

/// Computes embedding vectors of texts.
pub trait Embed {
    /// Unit vectors of [`Embed::size`] numbers, one per text.
    ///
    /// # Errors
    /// [`crate::Error::Product`] with the implementation's own message.
    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>>;

    /// Dimensions of a vector.
    fn size(&self) -> usize;
}

/// Classifies texts.
pub trait Classify {
    /// One number per label for each text: its probability, or the raw output of a regression model.
    ///
    /// # Errors
    /// [`crate::Error::Product`] with the implementation's own message.
    fn classify(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>>;

    /// Names of the labels, in the order of the numbers.
    fn labels(&self) -> &[String];
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    #[test]
    fn a_dropped_ticket_cancels() {
        let cancelled = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = cancelled.clone();
        let ticket = Ticket::new(move || seen.store(true, std::sync::atomic::Ordering::Relaxed));
        assert!(!cancelled.load(std::sync::atomic::Ordering::Relaxed));
        drop(ticket);
        assert!(cancelled.load(std::sync::atomic::Ordering::Relaxed));
    }

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
