//! What can go wrong at the edges of this crate: files, tokenizers, stores and the choice of documents.

use std::path::{Path, PathBuf};

/// The result of an operation on text, tokenizers or token stores.
pub type Result<T> = std::result::Result<T, Error>;

/// An error at an edge of this crate. Each message says what was wrong, where, and where it helps what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation on a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as in "cannot {action} FILE".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// There is no tokenizer of the kind that can be read.
    #[error("{} is missing; {advice}", path.display())]
    NoTokenizer {
        /// The file that would be it.
        path: PathBuf,
        /// What to do.
        advice: String,
    },
    /// A tokenizer file that cannot be used.
    #[error("{} is not a usable tokenizer: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A chat template that cannot be used.
    #[error("{}: the chat template: {reason}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A value in a JSON file that cannot be used.
    #[error("{}: key `{key}`: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The key, dotted from the root; empty for the file as a whole.
        key: String,
        /// What is wrong with the value.
        reason: String,
    },
    /// A binary file whose content breaks its format.
    #[error("{}: byte {offset}, {field}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where the field starts, in bytes from the start of the file.
        offset: u64,
        /// The field's name.
        field: &'static str,
        /// What was found and what was expected.
        reason: String,
    },
    /// A token id at or above the vocabulary's size.
    #[error(
        "{}: byte {offset}: token id {id} in document {doc} is outside the vocabulary of {vocab_size} ids; \
         the store was written with another tokenizer",
        path.display()
    )]
    IdOutsideVocabulary {
        /// The `.bin` file.
        path: PathBuf,
        /// Byte offset of the token.
        offset: u64,
        /// The document that holds it.
        doc: u64,
        /// The id as stored.
        id: i64,
        /// The number of ids allowed.
        vocab_size: u64,
    },
    /// A store with a tokenizer that did not make it.
    #[error(
        "{}: the store's ids are those of the tokenizer {made_by}, and the one given is {given}; name the tokenizer that the \
         store was written with, or write the store again",
        path.display()
    )]
    OtherTokenizer {
        /// The store's account.
        path: PathBuf,
        /// [`crate::Tokenizer::hash`] of the tokenizer that made the ids.
        made_by: String,
        /// That of the tokenizer given.
        given: String,
    },
    /// Text that the tokenizer refused.
    #[error("the tokenizer failed: {0}")]
    Encode(String),
    /// A token that a special role needs and the tokenizer does not have.
    #[error("{}: no end-of-text token: {reason}", path.display())]
    NoEos {
        /// The tokenizer's file.
        path: PathBuf,
        /// Where it was looked for.
        reason: String,
    },
    /// A row of a file that cannot be taught.
    #[error("{}:{line}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The line, from 1; of a JSON array, the number of the row.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A request that the given documents cannot satisfy.
    #[error("{0}")]
    Documents(String),
    /// A cursor that belongs to other data or other settings.
    #[error(
        "the data cursor was saved over other data or settings (fingerprint {saved}, now {current}); \
         resume with the stores, weights, seed, length and packing that the run began with"
    )]
    Cursor {
        /// The fingerprint inside the cursor.
        saved: String,
        /// The fingerprint of the data and settings given now.
        current: String,
    },
}

/// Attaches the file and the attempted action to a system error.
pub(crate) trait OrIo<T> {
    fn or_io(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> OrIo<T> for std::io::Result<T> {
    fn or_io(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.to_owned(), source })
    }
}
