//! Text processing for training: tokenizers, token stores, packing, blends, and the loader that feeds training steps.
//!
//! A document's path: [`tokenizer::Tokenizer`] converts its text to ids, [`store::StoreWriter`] appends them to a
//! Megatron `.bin/.idx` pair with a side file of metadata per document, [`loader::Loader`] draws documents from one
//! or more stores in a seeded order, [`pack`] places them side by side in samples of a fixed length, and the trainer
//! receives [`pack::PackedSample`]: tokens, labels, positions and document ranges in one flat row.
//!
//! Every order is a function of (seed, epoch) and of the stored bytes, so a cursor of a few numbers resumes a run
//! exactly. This crate is independent of models and devices.

pub mod chat;
mod error;
pub mod fuzz;
pub mod gguf;
pub mod jinja;
pub mod lessons;
pub mod loader;
pub mod pack;
pub mod recall;
mod rng;
pub mod store;
pub mod tokenizer;

pub use error::{Error, Result};
pub use rng::Rng;
pub use tokenizer::Tokenizer;
