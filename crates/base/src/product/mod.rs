//! Interfaces between products. A server, a guardrail or an evaluation works with any implementation and does not
//! depend on the engine, machine or network behind it. All traits are object-safe.
//!
//! A [`Service`] serves many callers concurrently, and is the sum of small traits by what is asked of it. A
//! [`LanguageModel`] serves one caller at a time, as do [`Embed`] and [`Classify`]; every service is one.

mod answer;
mod card;
mod model;
mod output;
mod relay;
mod request;
mod service;

pub use answer::{Event, Flow, Generation, Sink, Stop, Ticket, TokenLogprob, Usage};
pub use card::{Load, ModelCard};
pub use model::{Continuation, LanguageModel, LogLikelihood, likelihoods};
pub use output::{Answer, PendingOutput, RequestOutput, collect_output, outputs_while};
pub use relay::{Relay, relay};
pub use request::{
    Beams, Conversation, EarlyStopping, GenerateRequest, PartialSampling, Prompt, PromptPart, Sampling,
    Structure,
};
pub use service::{
    Administer, Describe, Evaluate, Generate, Numbers, Service, SpecialTokens, TextIds, TextPair, Tokenize,
    VectorSink,
};

use crate::error::Result;

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

    #[test]
    fn a_dropped_ticket_cancels() {
        let cancelled = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = cancelled.clone();
        let ticket = Ticket::new(move || seen.store(true, std::sync::atomic::Ordering::Relaxed));
        assert!(!cancelled.load(std::sync::atomic::Ordering::Relaxed));
        drop(ticket);
        assert!(cancelled.load(std::sync::atomic::Ordering::Relaxed));
    }

    /// Each token's log-probability is minus its id, and even ids are the most likely.
    struct Rule;

    impl LanguageModel for Rule {
        fn max_tokens(&self) -> usize {
            8
        }

        fn generate_all(&self, _: Vec<GenerateRequest>) -> Result<Vec<Vec<Generation>>> {
            Err(crate::Error::product("writes nothing"))
        }

        fn look(&self, texts: &[Vec<u32>], _: Numbers) -> Result<Vec<Vec<f32>>> {
            let token = |id: &u32| [-(*id as f32), f32::from(u8::from(id.is_multiple_of(2)))];
            Ok(texts.iter().map(|ids| ids[1..].iter().flat_map(token).collect()).collect())
        }
    }

    #[test]
    fn a_continuation_is_likely_by_its_own_tokens() {
        let of = |context: &[u32], continuation: &[u32]| Continuation {
            context: context.into(),
            continuation: continuation.into(),
        };
        let found = Rule.log_likelihoods(&[of(&[9, 7], &[2, 4]), of(&[1], &[3])]).unwrap();
        assert_eq!(found[0], LogLikelihood { logprobs: vec![-2.0, -4.0], hits: vec![true, true] });
        assert_eq!((found[0].sum(), found[0].is_greedy(), found[1].is_greedy()), (-6.0, true, false));
    }

    #[test]
    fn events_survive_serde() {
        let events = [
            Event::Piece { answer: 1, text: "a".into(), ids: vec![3], logprobs: Vec::new() },
            Event::Ended { answer: 1, stop: Stop::Refused { rail: "secrets".into(), why: "a key".into() } },
            Event::Failed(crate::Error::product("no memory")),
        ];
        for event in events {
            let text = serde_json::to_string(&event).unwrap();
            let read: Event = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
    }

    #[test]
    fn sampling_refuses_unknown_settings() {
        assert!(serde_json::from_str::<Sampling>(r#"{"temprature": 1}"#).is_err());
        let greedy: Sampling = serde_json::from_str("{}").unwrap();
        assert_eq!(greedy, Sampling::default());
    }
}
