//! Generation with a trained model: memory of keys and values, several sequences in one stream, sampling; scores and
//! vectors of given texts, and their classes by an encoder.
//!
//! Prompts are read in chunks and sequences advance together, as rows of one packed stream whose masks say which part
//! of the memory each row sees; a row's result does not depend on what runs beside it.
//!
//! This crate knows nothing of HTTP or training.
#![deny(missing_docs)]

mod classifier;
mod embed;
mod engine;
mod error;
mod kv;
mod sampler;
mod stop;

pub use classifier::Classifier;
pub use engine::{Engine, Limits};
pub use error::Error;
pub use kv::Cache;
pub use sampler::Sampler;
