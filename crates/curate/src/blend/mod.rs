//! Combining several sources into one corpus: selection, order and train/validation/test split of the documents.
//!
//! Three independent parts: [`Blend`] draws documents from weighted sources up to a target size, [`Shuffler`] writes
//! records to disk in random order, and [`Split`] assigns each document to training, validation or test. All depend
//! only on their options and on the ids, sizes and numbers of documents, never on the order in which documents
//! arrive.

mod draw;
mod permutation;
mod shuffle;
mod split;

pub use draw::{Blend, BlendOptions, BlendSource, Draw, Sizes, Unit};
pub use permutation::Permutation;
pub use shuffle::{ShuffleOptions, ShuffledRecords, Shuffler, shuffle_key};
pub use split::{Split, SplitOptions, SplitPart};

/// Separates a document's id from its copy number.
const COPY: &str = "~copy";

/// Id of a document's `number`-th copy; the document itself is the first.
pub fn copy_id(id: &str, number: usize) -> String {
    format!("{id}{COPY}{number}")
}

/// Id of the document that `id` is a copy of; `id` itself if it is not a copy.
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
