//! The base of all crates: typed recipes whose values remember their source, the metric events that a run appends to
//! `metrics.jsonl`, and the traits [`Generate`], [`Score`], [`Embed`], [`Classify`] and [`Service`] at which
//! products meet. It also has
//! small helpers that more than one crate needs: clocks, human units, token counts, secrets in addresses, files and their locks, guarded calls of
//! foreign code, the container GGUF, machine facts, available and resident memory, the variables by which launchers tell a process its rank, and advice for names of
//! models on the Hugging Face hub.
//!
//! This crate knows nothing of tensors, HTTP, or the files of any product.

// The macros of this crate name it by its public name, also when they are used inside it.
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

pub use error::{Error, Result};
pub use product::{
    Beams, Classify, Conversation, EarlyStopping, Embed, Event, Flow, Generate, GenerateRequest, Generation,
    Load, ModelCard, Numbers, PartialSampling, Prompt, Reading, Sampling, Score, Service, Sink, Stop,
    Structure, TextIds, TextPair, Ticket, TokenLogprob, Usage, VectorSink,
};

#[doc(hidden)]
pub use serde;
#[doc(hidden)]
pub use toml;
