//! Errors of jobs, and the boundary at which panics become errors.

use std::any::Any;
use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use fathom_tensor::{GivenUp, OutOfMemory};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Error type of this crate. Its message covers one cause; [`in_full`] joins the causes behind it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
#[non_exhaustive]
pub enum Error {
    /// The request cannot be fulfilled; the message says why and what to do.
    #[error("{0}")]
    Refused(String),
    /// A failed action and the error behind it.
    #[error("{what}")]
    Context {
        /// Description of the action, as a message.
        what: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// Out of memory: a pool's budget, or the machine's own.
    #[error("{0}")]
    OutOfMemory(OutOfMemory),
    /// An operation rejected its operands; the message names the operation and the shapes.
    #[error("{0}")]
    Panicked(String),
    /// The caller asked for the work to stop.
    #[error("stopped on request")]
    Stopped,
    /// The recipe asks for a part that this build does not have.
    #[error("{0}")]
    NotBuilt(&'static str),
    /// A run's folder belongs to another process.
    #[error("{} is in use by {holder}; wait for its end, end it, or give another folder (run.out=FOLDER)", folder.display())]
    InUse { folder: PathBuf, holder: String },
    /// A process among the ranks of a job ended it.
    #[error("rank {rank}: {reason}")]
    Rank { rank: usize, reason: String },
    /// From recipes, logs and files.
    #[error(transparent)]
    Base(#[from] fathom_base::Error),
    /// From models and their files.
    #[error(transparent)]
    Model(#[from] fathom_model::Error),
    /// From tokenizers and stores.
    #[error(transparent)]
    Text(#[from] fathom_text::Error),
    /// From training and its plans.
    #[error(transparent)]
    Train(#[from] fathom_train::Error),
    /// From readers of text, and from curations.
    #[error(transparent)]
    Curate(#[from] fathom_curate::Error),
    /// From generation.
    #[error(transparent)]
    Engine(#[from] fathom_engine::Error),
    /// From measurements.
    #[error(transparent)]
    Eval(#[from] fathom_eval::Error),
    /// From reports and traces.
    #[error(transparent)]
    Report(#[from] fathom_report::Error),
    /// From a GPU and its libraries.
    #[error(transparent)]
    Cuda(#[from] fathom_cuda::Error),
    /// From the program around a job.
    #[error(transparent)]
    Outside(Box<dyn StdError + Send + Sync>),
    /// From the file system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// From JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Returns an error and its causes on one line, omitting a cause that the message already contains.
pub fn in_full(error: &(dyn StdError + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
}

/// Runs work that may panic in an operation or when out of memory.
///
/// # Errors
/// Those of the work, or [`Error::OutOfMemory`] or [`Error::Panicked`] for a panic. The panic hook has run by then.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwinding releases what the work took, and its results are dropped with it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(of_panic(panic)))
}

/// Converts a panic's payload to an error.
fn of_panic(panic: Box<dyn Any + Send>) -> Error {
    if panic.is::<GivenUp>() {
        return Error::Stopped;
    }
    match panic.downcast::<OutOfMemory>() {
        Ok(full) => Error::OutOfMemory(*full),
        Err(other) => {
            let text = other.downcast_ref::<String>().cloned();
            let text = text.or_else(|| other.downcast_ref::<&str>().map(ToString::to_string));
            Error::Panicked(text.unwrap_or_else(|| "it panicked without a message".into()))
        }
    }
}

/// Adds a description of the failed action to an error.
pub(crate) trait Context<T> {
    /// Adds a message.
    fn context(self, what: impl Into<String>) -> Result<T>;
    /// Adds a message that is made only on failure.
    fn with_context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.with_context(|| what)
    }

    fn with_context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|source| Error::Context { what: what().into(), source: source.into() })
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.with_context(|| what)
    }

    fn with_context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.ok_or_else(|| Error::Refused(what().into()))
    }
}

/// Returns an [`Error::Refused`] with a formatted message.
macro_rules! refuse {
    ($($message:tt)*) => {
        return Err($crate::error::Error::Refused(format!($($message)*)))
    };
}
pub(crate) use refuse;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_joined_and_none_is_repeated() {
        let missing = || std::io::Error::new(std::io::ErrorKind::NotFound, "not there");
        let failed: Result<()> = Err(missing()).context("cannot read a.toml");
        assert_eq!(in_full(&failed.unwrap_err()), "cannot read a.toml: not there");
        let twice: Result<()> = Err(missing()).context("a.toml: not there");
        assert_eq!(in_full(&twice.unwrap_err()), "a.toml: not there");
    }

    #[test]
    fn panics_are_errors() {
        let full = caught::<()>(|| OutOfMemory::raise("8 bytes".into())).unwrap_err();
        assert!(matches!(&full, Error::OutOfMemory(_)) && full.to_string().contains("8 bytes"), "{full}");
        let other = caught::<()>(|| panic!("matmul: [2, 3] by [{}, 4]", 5)).unwrap_err();
        assert!(matches!(&other, Error::Panicked(_)), "{other:?}");
        assert_eq!(other.to_string(), "matmul: [2, 3] by [5, 4]");
        assert_eq!(caught(|| Ok(3)).unwrap(), 3);
    }
}
