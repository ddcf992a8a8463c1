//! Removal of evaluation sets from the training text.
//!
//! The rules are those of NeMo Curator 0.x (`TaskDecontamination`), which its rewrite dropped. Evaluation texts
//! become n-grams of words; a first pass over the corpus counts their occurrences ([`Decontaminator::find`]); an
//! n-gram found too often is common speech rather than a leak ([`Decontaminator::removable`]); a second pass cuts
//! each remaining match out of its document with some text on both sides, and drops documents of which little is left
//! ([`Decontaminator::clean`]). Memory holds the n-grams and their counts, independent of corpus size.
//!
//! Three bugs of the original are not reproduced: it uses positions in the lower-cased text without punctuation as
//! positions in the text, it splits words at spaces but not at line ends, and it never examines a document shorter
//! than the longest n-gram.

mod grams;
mod report;
mod sets;
mod words;

pub use grams::{CleaningOutcome, Decontaminator, Matches, Removable};
pub use report::{DecontaminationReport, GramReport, TaskReport};
pub use sets::EvaluationSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How documents are decontaminated; the defaults are NeMo Curator's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DecontaminateOptions {
    /// The evaluation sets: files or folders, each a path, `name=path`, or a table that also names the fields with the
    /// texts, `text` if none.
    pub sets: Vec<EvaluationSet>,
    /// Words of an n-gram; a text of a set with fewer is one n-gram of all its words (NeMo Curator: 13).
    #[schemars(range(min = 1))]
    pub max_ngram_words: usize,
    /// Texts of sets with fewer words are not looked for (NeMo Curator: 8); not above `max_ngram_words`.
    pub min_ngram_words: usize,
    /// An n-gram found more often than this, over all documents, is common speech and stays (NeMo Curator: 10).
    pub max_matches: u64,
    /// Characters that go on each side of a match; the cut goes on to the end of a sentence (NeMo Curator: 200).
    pub remove_chars: usize,
    /// Text before or after a match is dropped unless it has more characters than this (NeMo Curator: 200).
    pub min_chars: usize,
    /// A document that falls into more pieces is dropped (NeMo Curator: 10).
    pub max_splits: usize,
}

impl Default for DecontaminateOptions {
    fn default() -> Self {
        Self {
            sets: Vec::new(),
            max_ngram_words: 13,
            min_ngram_words: 8,
            max_matches: 10,
            remove_chars: 200,
            min_chars: 200,
            max_splits: 10,
        }
    }
}
