//! Tasks and metrics over anything that implements [`fathom_base::Generate`] or [`fathom_base::Score`].
//!
//! Four measurements: loss by position ([`loss_of_sequences`]), the loss of the same tokens with all of their context and with a part
//! of it ([`worth_of_context`]), bits per byte of unseen text next to those of gzip ([`bits_per_byte`]), and finding a planted fact by
//! length and depth ([`find_needles`]). Each returns its figures with the counts behind them and turns into the event of the metrics log.
//! All are functions of the model, the text and the seed; a deadline only decides how much is measured, and the counts say how much that
//! was.
//!
//! This crate knows nothing of engines, machines or training.

mod bits;
mod context;
mod error;
mod limits;
mod needle;
mod position;

pub use bits::{Bits, HeldOut, bits_per_byte};
pub use context::{Worth, worth_of_context};
pub use error::{Error, Result};
pub use limits::Limits;
pub use needle::{Length, NeedleSpec, Needles, find_needles};
pub use position::{
    ByPosition, bucket_bounds, loss_by_position, loss_by_position_same_documents, loss_of_sequences, mixed,
};

/// When something was measured, as the metrics log wants to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// `before_extension`, `after_extension`, or another name.
    pub when: String,
    /// Finished updates.
    pub step: u64,
    /// Longest sequence the model was trained on by then.
    pub trained_tokens: u64,
}
