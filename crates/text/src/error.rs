//! Errors of this crate: files, tokenizers, stores and the choice of documents.

use std::path::{Path, PathBuf};

/// The result of an operation on text, tokenizers or token stores.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of this crate. Messages state the problem, its place and, where useful, the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// No tokenizer of a supported kind was found.
    #[error("{} is missing; {advice}", path.display())]
    NoTokenizer { path: PathBuf, advice: String },
    /// The tokenizer file is unusable.
    #[error("{} is not a usable tokenizer: {reason}", path.display())]
    Tokenizer { path: PathBuf, reason: String },
    /// The chat template is unusable.
    #[error("{}: the chat template: {reason}", path.display())]
    Template { path: PathBuf, reason: String },
    /// A value in a JSON file is invalid.
    #[error("{}: key `{key}`: {reason}", path.display())]
    Json {
        path: PathBuf,
        /// The key, dotted from the root; empty for the file as a whole.
        key: String,
        reason: String,
    },
    /// The content of a binary file violates its format.
    #[error("{}: byte {offset}, {field}: {reason}", path.display())]
    Format { path: PathBuf, offset: u64, field: &'static str, reason: String },
    /// A token id at or above the vocabulary's size.
    #[error(
        "{}: byte {offset}: token id {id} in document {doc} is outside the vocabulary of {vocab_size} ids; \
         the store was written with another tokenizer",
        path.display()
    )]
    IdOutsideVocabulary {
        /// The `.bin` file.
        path: PathBuf,
        offset: u64,
        doc: u64,
        id: i64,
        vocab_size: u64,
    },
    /// The store was made with another tokenizer.
    #[error(
        "{}: the store's ids are those of the tokenizer {made_by}, and the one given is {given}; name the tokenizer that the \
         store was written with, or write the store again",
        path.display()
    )]
    OtherTokenizer {
        path: PathBuf,
        /// [`crate::Tokenizer::hash`] of the tokenizer that made the ids.
        made_by: String,
        given: String,
    },
    /// The tokenizer failed to encode a text.
    #[error("the tokenizer failed: {0}")]
    Encode(String),
    /// The tokenizer lacks a required special token.
    #[error("{}: no end-of-text token: {reason}", path.display())]
    NoEos { path: PathBuf, reason: String },
    /// A row of a file cannot be used for training.
    #[error("{}:{line}: {reason}", path.display())]
    Row {
        path: PathBuf,
        /// Line number, from 1; in a JSON array, the number of the row.
        line: u64,
        reason: String,
    },
    /// The operating system refused an operation on a file.
    #[error(transparent)]
    Io(#[from] fathom_base::IoError),
    /// The given documents cannot satisfy a request.
    #[error("{0}")]
    Documents(String),
    /// The cursor belongs to other data or settings.
    #[error(
        "the data cursor was saved over other data or settings (fingerprint {saved}, now {current}); \
         resume with the stores, weights, seed, length and packing that the run began with"
    )]
    Cursor { saved: String, current: String },
}

/// Attaches the file and the attempted action to a system error.
pub(crate) trait OrIo<T> {
    fn or_io(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> OrIo<T> for std::io::Result<T> {
    fn or_io(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(fathom_base::IoError::at(action, path))
    }
}
