//! Deduplication of documents.
//!
//! * [`Unique`] passes on the first of equal texts in a stream; [`exact`] finds equal texts with less memory than
//!   their hashes need.
//! * [`fuzzy`] finds near-duplicates: MinHash signatures ([`MinHash`]), bands ([`Bands`]), pairs by an external sort
//!   ([`Engine`]), components ([`Components`]) and, optionally, the exact similarity of each pair ([`jaccard`]).
//! * [`ParagraphFilter`] drops paragraphs seen before, using a Bloom filter; [`substrings`] cuts out repeated byte
//!   ranges, using a suffix array; [`semantic`] finds documents with the same meaning by their embeddings.
//! * [`NearDuplicates`] generates texts to try them on.
//!
//! Documents have ascending numbers, and the first document of a cluster represents it. Results depend only on texts
//! and options, never on threads, hash-map order or file order. This module is independent of the stages that call
//! it, of languages and of tokens.

#[cfg(feature = "pipeline")]
mod bands;
#[cfg(feature = "pipeline")]
mod bloom;
#[cfg(feature = "pipeline")]
mod bloom_layer;
#[cfg(feature = "pipeline")]
mod components;
#[cfg(feature = "pipeline")]
mod embeddings;
#[cfg(feature = "pipeline")]
mod engine;
#[cfg(feature = "pipeline")]
mod exact;
#[cfg(feature = "pipeline")]
mod fuzzy;
#[cfg(feature = "pipeline")]
mod generate;
#[cfg(feature = "pipeline")]
mod jaccard;
#[cfg(feature = "pipeline")]
mod kernels;
#[cfg(feature = "pipeline")]
mod kmeans;
#[cfg(feature = "pipeline")]
mod minhash;
#[cfg(feature = "pipeline")]
mod murmur;
#[cfg(feature = "pipeline")]
mod numbering;
#[cfg(feature = "pipeline")]
mod one_permutation;
#[cfg(feature = "pipeline")]
mod recall;
#[cfg(feature = "pipeline")]
mod seeds;
#[cfg(feature = "pipeline")]
mod semantic;
#[cfg(feature = "pipeline")]
mod shingle;
#[cfg(feature = "pipeline")]
mod substrings;
mod unique;
#[cfg(feature = "pipeline")]
mod words;

#[cfg(feature = "pipeline")]
pub use bands::{Bands, FuzzyOptions};
#[cfg(feature = "pipeline")]
pub use bloom::{BloomOptions, BloomUnit, ParagraphFilter, Paragraphs};
#[cfg(feature = "pipeline")]
pub use components::Components;
#[cfg(feature = "pipeline")]
pub use embeddings::Embeddings;
#[cfg(feature = "pipeline")]
pub use engine::Engine;
#[cfg(feature = "pipeline")]
pub use exact::{Digest, ExactFinder, exact, exact_needs};
#[cfg(feature = "pipeline")]
pub use fuzzy::{Duplicates, FuzzyFinder, Needs, band_keys, fuzzy, fuzzy_needs};
#[cfg(feature = "pipeline")]
pub use generate::NearDuplicates;
#[cfg(feature = "pipeline")]
pub use jaccard::jaccard;
#[cfg(feature = "pipeline")]
pub use minhash::{MinHash, MinHashOptions, MinHashScratch, Scheme};
#[cfg(feature = "pipeline")]
pub use recall::{RECALL_BUCKETS, RecallBucket, recall};
#[cfg(feature = "pipeline")]
pub use semantic::{Preference, SemanticOptions, semantic, semantic_needs};
#[cfg(feature = "pipeline")]
pub use shingle::Shingles;
#[cfg(feature = "pipeline")]
pub use substrings::{SubstringOptions, SubstringReport, substring_needs, substrings};
pub use unique::{Sameness, Unique};
