//! Which documents are the same.
//!
//! * [`Unique`] passes on the first of equal texts while they stream, [`exact`] finds equal texts with less memory than
//!   their hashes need.
//! * [`fuzzy`] finds near-duplicates: MinHash signatures ([`MinHash`]), bands ([`Bands`]), pairs by a sort that spills
//!   ([`Engine`]), components ([`Components`]) and, where asked, the exact similarity of each ([`jaccard`]).
//! * [`ParagraphFilter`] drops paragraphs seen before, by a Bloom filter; [`substrings`] cuts repeated stretches of bytes
//!   out, by a suffix array; [`semantic`] finds documents that mean the same, by their embeddings.
//! * [`NearDuplicates`] makes texts to try them on.
//!
//! Documents have numbers that ascend; the first document of a cluster stands for it. Results depend on texts and
//! options, never on threads, on the order of a hash map or of files. This module knows nothing of the stages that
//! call it, of languages or of tokens.

mod bands;
mod bloom;
mod bloom_layer;
mod components;
mod embeddings;
mod engine;
mod exact;
mod fuzzy;
mod generate;
mod jaccard;
mod kernels;
mod kmeans;
mod minhash;
mod murmur;
mod numbering;
mod one_permutation;
mod recall;
mod seeds;
mod semantic;
mod shingle;
mod substrings;
mod unique;
mod words;

pub use bands::{Bands, FuzzyOptions};
pub use bloom::{BloomOptions, BloomUnit, ParagraphFilter, Paragraphs};
pub use components::Components;
pub use embeddings::Embeddings;
pub use engine::Engine;
pub use exact::{Digest, ExactFinder, exact, exact_needs};
pub use fuzzy::{Duplicates, FuzzyFinder, Needs, band_keys, fuzzy, fuzzy_needs};
pub use generate::NearDuplicates;
pub use jaccard::jaccard;
pub use minhash::{MinHash, MinHashOptions, MinHashScratch, Scheme};
pub use recall::{RECALL_BUCKETS, RecallBucket, recall};
pub use semantic::{Preference, SemanticOptions, semantic, semantic_needs};
pub use shingle::Shingles;
pub use substrings::{SubstringOptions, SubstringReport, substring_needs, substrings};
pub use unique::{Sameness, Unique};
