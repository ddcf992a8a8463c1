//! The base of all crates: typed recipes whose values remember their source, the metric events that a run appends to
//! `metrics.jsonl`, and the interfaces between products: [`LanguageModel`], [`Embed`], [`Classify`] and [`Service`]. It
//! also contains small helpers needed by several crates: clocks, human-readable units, token counts,
//! secrets in addresses, files and their locks, guarded calls of foreign code, the GGUF container, machine facts,
//! available and resident memory, the environment variables by which launchers assign ranks to processes, and advice
//! for model names of the Hugging Face hub.
//!
//! This crate is independent of tensors, HTTP, and the file formats of any product.

// The macros of this crate refer to it by its public name, even inside the crate.
extern crate self as fathom_base;

pub mod clock;
mod error;
pub mod files;
pub mod gguf;
pub mod guard;
pub mod hub;
pub mod human;
pub mod lock;
pub mod machine_facts;
pub mod memory;
pub mod metrics;
pub mod product;
pub mod ranks;
pub mod recipe;
pub mod rss;
pub mod secrets;
pub mod tokens;

pub use error::{Error, IoError, Result};
pub use product::{
    Administer, Answer, Beams, Classify, Continuation, Conversation, Describe, EarlyStopping, Embed,
    Evaluate, Event, Flow, Generate, GenerateRequest, Generation, LanguageModel, Load, LogLikelihood,
    ModelCard, Numbers, PartialSampling, PendingOutput, Prompt, PromptPart, Relay, RequestOutput, Sampling,
    Service, Sink, SpecialTokens, Stop, Structure, TextIds, TextPair, Ticket, TokenLogprob, Tokenize, Usage,
    VectorSink, collect_output, likelihoods, outputs_while, relay,
};

#[doc(hidden)]
pub use serde;
#[doc(hidden)]
pub use toml;
