//! Errors of measurements: from the model, from the tokenizer, or because a measurement is not possible.

/// The result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// An error of the model.
    #[error(transparent)]
    Model(#[from] fathom_base::Error),
    /// An error of the tokenizer, or of building a prompt.
    #[error(transparent)]
    Text(#[from] fathom_text::Error),
    /// The requested measurement is not possible.
    #[error("{0}")]
    Impossible(String),
    /// A task cannot be run.
    #[error("task `{task}`: {reason}")]
    Task { task: String, reason: String },
    /// The model violated the contract of [`fathom_base::Numbers::Logprobs`].
    #[error("the model gave {got} losses for {tokens} tokens; one less than tokens is the contract")]
    WrongCount { got: usize, tokens: usize },
}

impl Error {
    /// A task cannot be run.
    pub fn task(task: &str, reason: impl Into<String>) -> Error {
        Error::Task { task: task.to_string(), reason: reason.into() }
    }
}

/// The losses of `ids[1..]`, with their number checked.
pub(crate) fn losses(model: &dyn fathom_base::LanguageModel, ids: &[u32]) -> Result<Vec<f64>> {
    let rows = model.look(&[ids.to_vec()], fathom_base::Numbers::Logprobs)?;
    let losses: Vec<f64> = rows.concat().chunks_exact(2).map(|token| -f64::from(token[0])).collect();
    if losses.len() + 1 == ids.len().max(1) {
        Ok(losses)
    } else {
        Err(Error::WrongCount { got: losses.len(), tokens: ids.len() })
    }
}
