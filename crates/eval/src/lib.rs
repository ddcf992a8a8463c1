//! Tasks and metrics for any [`fathom_base::LanguageModel`].
//!
//! There are four measurements: loss by position ([`loss_of_sequences`]), the loss of the same tokens with the full and
//! a truncated context ([`worth_of_context`]), bits per byte of held-out text compared with gzip ([`bits_per_byte`]),
//! and needle in a haystack by length and depth ([`find_needles`]). Each returns its figures with the counts behind
//! them and can be converted to an event for the metrics log. The results are functions of the model, the text and the
//! seed; a deadline only limits how much is measured, and the counts record how much that was.
//!
//! [`tasks`] runs task files in the format of lm-evaluation-harness, with the figures of [`metrics`]; sets of [`ruler`]
//! are drawn for them.
//!
//! This crate does not depend on engines, machines or training.

mod bits;
mod context;
mod error;
pub mod judged;
pub mod lengths;
mod limits;
pub mod long;
pub mod metrics;
mod needle;
mod position;
pub mod python;
pub mod ruler;
pub mod tasks;

pub use bits::{Bits, HeldOut, bits_per_byte};
pub use context::{Worth, worth_of_context};
pub use error::{Error, Result};
pub use limits::Limits;
pub use needle::{Length, NeedleSpec, Needles, find_needles};
pub use position::{
    ByPosition, bucket_bounds, loss_by_position, loss_by_position_same_documents, loss_of_sequences, mixed,
};

/// When a measurement was taken, as recorded in the metrics log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// `before_extension`, `after_extension`, or another name.
    pub when: String,
    /// Number of finished updates.
    pub step: u64,
    /// Longest sequence the model has been trained on so far.
    pub trained_tokens: u64,
}
