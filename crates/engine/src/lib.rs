//! Generation with a trained model: continuous batching over paged keys and values, shared prefixes, sampling. Also
//! scores and embeddings of given texts, including by encoders, and their classification.
//!
//! Prompts are read in chunks and sequences advance together, as rows of one packed stream whose masks restrict each
//! row to its sequence's pages. A row's result does not depend on the other rows.
//!
//! This crate knows nothing of HTTP or training.

mod adapted;
mod adapters;
mod answer;
mod bounds;
mod documents;
mod embed;
mod encoder;
mod engine;
mod error;
mod generate;
mod limits;
mod look;
mod pages;
mod parts;
mod ranks;
mod rollout;
mod sampler;
mod schedule;
mod service;
mod stop;
mod store;
mod structure;
mod texts;

pub use bounds::Bounds;
pub use encoder::TextEncoder;
pub use engine::Engine;
pub use error::Error;
pub use limits::{Capacity, Limits};
pub use pages::{layer_page_bytes, page_buffers_bytes, page_bytes};
pub use ranks::{Follower, Leader, ranks};
pub use rollout::Writer;
pub use sampler::Sampler;
pub use schedule::{Listener, Scheduler};
pub use service::{Accept, Commands, Facts, Handle, Render, service};
pub use store::{Beginnings, HeldReads, KeptModel, StoreLocation};
pub use structure::{Constraint, Structures, probe};
pub use texts::TextReading;
