//! What can go wrong while measuring: the model, the tokenizer, or a measurement that cannot be made.

/// The result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's own error.
    #[error(transparent)]
    Model(#[from] fathom_base::Error),
    /// The tokenizer's, or that of a prompt which cannot be made.
    #[error(transparent)]
    Text(#[from] fathom_text::Error),
    /// What was asked for cannot be measured.
    #[error("{0}")]
    Impossible(String),
    /// The model broke the contract of [`fathom_base::Score::losses`].
    #[error("the model gave {got} losses for {tokens} tokens; one less than tokens is the contract")]
    WrongCount {
        /// Losses received.
        got: usize,
        /// Tokens given.
        tokens: usize,
    },
}

/// The losses of `ids[1..]`, with their number checked.
pub(crate) fn losses(model: &mut dyn fathom_base::Score, ids: &[u32]) -> Result<Vec<f64>> {
    let losses = model.losses(ids)?;
    if losses.len() + 1 == ids.len().max(1) {
        Ok(losses)
    } else {
        Err(Error::WrongCount { got: losses.len(), tokens: ids.len() })
    }
}
