//! The one error enum of this crate. Every message says what was wrong, where, and what to do.

use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong at the edges: files, recipes, and products behind the traits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused to read, write or create a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: `read`, `write`, `create`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The text of a recipe is not TOML.
    #[error("{place}: not valid TOML: {message}{snippet}")]
    Toml {
        /// `file my.toml:7`, or the command line.
        place: String,
        /// The parser's message.
        message: String,
        /// The line with a caret below, or nothing.
        snippet: String,
    },
    /// A key that no table of the recipe has.
    #[error("{place}: unknown key `{key}`; {hint}")]
    UnknownKey {
        /// Where it was written.
        place: String,
        /// The full dotted path as written.
        key: String,
        /// `did you mean ...` or the keys that exist there.
        hint: String,
    },
    /// A value of the wrong kind, or one that its type refuses.
    #[error("{place}: `{key}` should be {expected}, found {found}{hint}")]
    WrongType {
        /// Where it was written.
        place: String,
        /// The full dotted path.
        key: String,
        /// What the key takes.
        expected: String,
        /// What was written.
        found: String,
        /// A suggestion, with its leading separator, or nothing.
        hint: String,
    },
    /// `name=value` was expected on the command line.
    #[error(
        "command line: `{text}` is not a setting; write `path.to.key=value`, for example `optimizer.lr=3e-4`"
    )]
    NotASetting {
        /// What was written.
        text: String,
    },
    /// A recipe name that is not shipped and is no file.
    #[error("{place}: no recipe is called `{name}`; {hint}")]
    UnknownRecipe {
        /// Who asked for it.
        place: String,
        /// The name asked for.
        name: String,
        /// `did you mean ...` or the names that exist.
        hint: String,
    },
    /// Recipes that extend each other in a circle.
    #[error("recipes extend each other in a circle: {chain}; remove one `extends`")]
    ExtendsCircle {
        /// The names, in order.
        chain: String,
    },
    /// A recipe that is well formed but says something impossible. For checks made by the recipe's owner.
    #[error("{place}: `{key}`: {message}")]
    Refused {
        /// Where the value came from.
        place: String,
        /// The full dotted path.
        key: String,
        /// What is impossible and what to do.
        message: String,
    },
    /// As [`Error::Refused`], of a value that another key leaves without sense, which a later layer sets: the earlier value gives way.
    #[error("{place}: `{key}`: {message}")]
    Outdated {
        /// Where the value came from.
        place: String,
        /// The full dotted path, as typed.
        key: String,
        /// What is impossible and what to do.
        message: String,
        /// The full dotted path.
        path: String,
        /// The key that a later layer sets.
        by: String,
    },
    /// A metrics file holds a line that is not a JSON object.
    #[error("{}:{line}: not a metric event: {message}", path.display())]
    BadEvent {
        /// The metrics file.
        path: PathBuf,
        /// One-based line number.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// Launchers that contradict each other about who this process is, or say what cannot be.
    #[error(
        "who is this process among the ranks? {message}; `fathom doctor --dist` shows what each launcher says"
    )]
    Ranks {
        /// What was said, by whom, and what to do.
        message: String,
    },
    /// A queue is full.
    #[error("{what}; try again in {retry_after_s:.0} s")]
    Busy {
        /// What there is too much of.
        what: String,
        /// Seconds until there is likely to be room.
        retry_after_s: f64,
    },
    /// A request that cannot be answered as it asks, which may show only while it is answered.
    #[error("{what}")]
    Unmet {
        /// What cannot be met.
        what: String,
    },
    /// A request for something that there is not, or not any more.
    #[error("{what}")]
    Missing {
        /// What is missing.
        what: String,
    },
    /// What a product behind [`crate::Generate`], [`crate::Score`] or [`crate::Embed`] reports.
    #[error(transparent)]
    Product(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an input or output error with what was tried and on which path.
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: std::io::Error) -> Error {
        Error::Io { action, path: path.as_ref().to_path_buf(), source }
    }

    /// Wraps the error of a product, keeping its message as it is.
    pub fn product(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Product(error.into())
    }
}
