//! An index of people's own documents, and questions to it.
//!
//! [`index`] reads Markdown, text, web pages, PDFs, JSON lines and source code into chunks that respect the structure of
//! the source and know their place in it; [`Index`] answers queries by BM25, by vectors of an encoder, or by both;
//! [`measure`] computes nDCG, MRR and recall of rankings.
//!
//! An index is a folder of immutable files, each named by the hash of what it is made from and published by rename, and a
//! manifest that is published last. So an interrupted run goes on where it was and ends with the same bytes, and an update
//! writes only what changed.
//!
//! This crate knows nothing of models and tensors: vectors come through [`Encode`]. They are searched in the folder, or in
//! a store outside that has a copy of them ([`StoreAddress`]).

mod approximate;
mod build;
mod chunk;
mod error;
mod files;
mod filter;
mod manifest;
mod map;
pub mod measure;
mod near;
mod products;
mod progress;
pub mod ranking;
mod read;
mod search;
mod segment;
mod store;
mod terms;
mod vectors;

pub use build::{CHUNK_BYTES, IndexOptions, IndexReport, index};
pub use error::{Error, Result};
pub use filter::Condition;
pub use manifest::EncoderFacts;
pub use progress::{IndexPhase, IndexProgress};
pub use read::Kind;
pub use search::{Hit, Index, Mode, Query};
pub use segment::DocumentFacts;
pub use store::StoreAddress;
pub use terms::terms;
pub use vectors::Encode;
