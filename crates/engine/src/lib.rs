//! Generation with a trained model: key-value cache, several sequences in one stream, sampling. Also scores and embeddings of
//! given texts, and their classification by an encoder.
//!
//! Prompts are read in chunks and sequences advance together, as rows of one packed stream whose masks restrict each row
//! to its part of the cache. A row's result does not depend on the other rows.
//!
//! This crate knows nothing of HTTP or training.

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
