//! Several sources into one corpus: which documents, in what order, and for which part of the work.
//!
//! Three pieces that know nothing of files but their own: [`Blend`] draws documents of weighted sources up to a
//! target size, [`Shuffler`] puts records in a random order on disk, [`Split`] assigns each document to training,
//! validation or test. All are functions of their options and the ids, sizes and numbers of documents; the order in
//! which documents happen to arrive decides nothing.

mod draw;
mod permutation;
mod shuffle;
mod split;

pub use draw::{Blend, BlendOptions, BlendSource, Draw, Sizes, Unit};
pub use permutation::Permutation;
pub use shuffle::{ShuffleOptions, Shuffled, Shuffler, shuffle_key};
pub use split::{Split, SplitOptions, SplitPart};
