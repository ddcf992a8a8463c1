//! What can go wrong with a job, and the edge at which panics become errors.

use std::any::Any;
use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use fathom_tensor::OutOfMemory;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The one error of this crate. Its text is that of one cause; [`in_full`] joins those behind it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for cannot be done; the message says why and what to do.
    #[error("{0}")]
    Refused(String),
    /// What failed, and the error behind it.
    #[error("{what}")]
    Context {
        /// What was tried, as a message.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// There is no memory for it: a pool's budget, or the machine's own.
    #[error("{0}")]
    OutOfMemory(OutOfMemory),
    /// Mathematics refused what it was given; the message names the operation and the shapes.
    #[error("{0}")]
    Panicked(String),
    /// The recipe asks for a part that this build does not have.
    #[error("{0}")]
    NotBuilt(&'static str),
    /// A run's folder belongs to another process.
    #[error("{} is in use by {holder}; wait for its end, end it, or give another folder (run.out=FOLDER)", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process.
        holder: String,
    },
    /// A process among the ranks of a job ended it.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// Which.
        rank: usize,
        /// Why.
        reason: String,
    },
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

/// An error and its causes in a line; a cause that a message contains already is not repeated.
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

/// Runs work that may panic in mathematics, or for want of memory.
///
/// # Errors
/// Its own, or [`Error::OutOfMemory`] or [`Error::Panicked`] for what it panicked with. The panic hook has run before.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What the work took is given back when it unwinds, and its results are dropped with it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(of_panic(panic)))
}

/// The error that a panic stands for.
fn of_panic(panic: Box<dyn Any + Send>) -> Error {
    match panic.downcast::<OutOfMemory>() {
        Ok(full) => Error::OutOfMemory(*full),
        Err(other) => {
            let text = other.downcast_ref::<String>().cloned();
            let text = text.or_else(|| other.downcast_ref::<&str>().map(ToString::to_string));
            Error::Panicked(text.unwrap_or_else(|| "it panicked without a message".into()))
        }
    }
}

/// Says what was tried when something fails.
pub(crate) trait Context<T> {
    /// With a message at hand.
    fn context(self, what: impl Into<String>) -> Result<T>;
    /// With a message that is made only then.
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
