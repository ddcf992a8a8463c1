//! The error enum of this crate. Every message states the problem, its place and the remedy.

use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An operation on a file or folder that the operating system refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct IoError {
    action: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

impl IoError {
    /// Names the action (`read`, `write`, `create`) and the path, for `map_err`.
    pub fn at<E: From<IoError>>(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> E {
        move |source| IoError { action, path: path.as_ref().to_path_buf(), source }.into()
    }
}

/// Errors of files, recipes, and implementations of the product traits.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// The operating system refused to read, write or create a file.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The text of a recipe is not TOML.
    #[error("{place}: not valid TOML: {message}{snippet}")]
    Toml {
        /// `file my.toml:7`, or the command line.
        place: String,
        message: String,
        /// The offending line with a caret below, or empty.
        snippet: String,
    },
    /// No table of the recipe has this key.
    #[error("{place}: unknown key `{key}`; {hint}")]
    UnknownKey {
        place: String,
        key: String,
        /// `did you mean ...`, or the keys that exist there.
        hint: String,
    },
    /// A value has the wrong type, or its type rejects it.
    #[error("{place}: `{key}` should be {expected}, found {found}{hint}")]
    WrongType {
        place: String,
        key: String,
        expected: String,
        found: String,
        /// A suggestion with its leading separator, or empty.
        hint: String,
    },
    /// A command-line argument does not have the form `name=value`.
    #[error(
        "command line: `{text}` is not a setting; write `path.to.key=value`, for example `optimizer.lr=3e-4`"
    )]
    NotASetting { text: String },
    /// A recipe name is neither a built-in recipe nor a file.
    #[error("{place}: no recipe is called `{name}`; {hint}")]
    UnknownRecipe {
        place: String,
        name: String,
        /// `did you mean ...`, or the existing names.
        hint: String,
    },
    /// Recipes extend each other cyclically.
    #[error("recipes extend each other in a circle: {chain}; remove one `extends`")]
    ExtendsCircle { chain: String },
    /// A well-formed recipe has an impossible value. For checks made by the recipe's owner.
    #[error("{place}: `{key}`: {message}")]
    Refused { place: String, key: String, message: String },
    /// Like [`Error::Refused`], for a value that became invalid because a later layer sets another key; the earlier
    /// value may be dropped.
    #[error("{place}: `{key}`: {message}")]
    Outdated {
        place: String,
        /// Full dotted path, as typed.
        key: String,
        message: String,
        path: String,
        by: String,
    },
    /// A line of a metrics file is not a JSON object.
    #[error("{}:{line}: not a metric event: {message}", path.display())]
    BadEvent {
        path: PathBuf,
        /// One-based line number.
        line: usize,
        message: String,
    },
    /// Launchers contradict each other about this process's rank, or report impossible values.
    #[error(
        "who is this process among the ranks? {message}; `fathom doctor --dist` shows what each launcher says"
    )]
    Ranks {
        /// The reported values, their origin, and the remedy.
        message: String,
    },
    /// A queue is full.
    #[error("{what}; try again in {retry_after_s:.0} s")]
    Busy { what: String, retry_after_s: f64 },
    /// A request cannot be fulfilled as specified; this may become apparent only during its execution.
    #[error("{what}")]
    Unmet { what: String },
    /// A requested object does not exist, or no longer exists.
    #[error("{what}")]
    Missing { what: String },
    /// The model behind a request has stopped, and no further request will be answered.
    #[error("{what}")]
    Gone { what: String },
    /// Error of an implementation of a product's trait, such as [`crate::LanguageModel`].
    #[error(transparent)]
    Product(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an I/O error with the attempted action and the path.
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: std::io::Error) -> Error {
        IoError::at(action, path)(source)
    }

    /// Wraps the error of an implementation, keeping its message unchanged.
    pub fn product(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Product(error.into())
    }
}
