//! The traits that products meet at. A server, a rail or an evaluation works with any of these and never
//! learns which engine, machine or network is behind. All are object-safe.
//!
//! [`Generate`], [`Score`], [`Embed`] and [`Classify`] answer one caller at a time; a [`Service`] answers many at once.

mod answer;
mod request;
mod service;

pub use answer::{Event, Flow, Generation, Stop, Ticket, TokenLogprob, Usage};
pub use request::{Beams, EarlyStopping, GenerateRequest, PartialSampling, Prompt, Sampling, Structure};
pub use service::{
    Conversation, Load, ModelCard, Numbers, Reading, Service, Sink, TextIds, TextPair, VectorSink,
};

use crate::error::Result;

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
