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

/// Between a document's id and the number of its copy.
const COPY: &str = "~copy";

/// The id of a document's n-th copy; the document itself is the first.
pub fn copy_id(id: &str, number: usize) -> String {
    format!("{id}{COPY}{number}")
}

/// The id of the document that this one is a copy of, or its own.
pub fn original_id(id: &str) -> &str {
    match id.rsplit_once(COPY) {
        Some((original, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            original
        }
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::{copy_id, original_id};

    #[test]
    fn copies_know_their_original() {
        assert_eq!(original_id(&copy_id("wiki/a#3", 12)), "wiki/a#3");
        for own in ["a", "a~copy", "a~copyb", "~copy2/b"] {
            assert_eq!(original_id(own), own);
        }
    }
}
