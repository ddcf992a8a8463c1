//! Tasks and metrics over anything that implements [`fathom_base::Generate`] or [`fathom_base::Score`].
//!
//! Three measurements: loss by position ([`loss_by_position`]), bits per byte of unseen text beside those of gzip
//! ([`bits_per_byte`]), and finding a planted fact by length and depth ([`find_needles`]). Each returns its figures
//! with the counts behind them and turns into the event of the metrics log. All are functions of the model, the
//! text and the seed; a time budget only decides how much is measured, and the counts say how much that was.
//!
//! This crate knows nothing of engines, machines or training.

mod bits;
mod error;
mod needle;
mod position;

pub use bits::{Bits, HeldOut, bits_per_byte};
pub use error::{Error, Result};
pub use needle::{Length, NeedleSpec, Needles, find_needles};
pub use position::{ByPosition, bucket_bounds, loss_by_position, loss_by_position_same_documents};

use std::time::{Duration, Instant};

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

/// How much is measured at most. One document is always measured, however small the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Documents at most.
    pub documents: usize,
    /// No further document is begun after this time; `None` sets no limit, and then two runs agree exactly.
    pub budget: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { documents: usize::MAX, budget: None }
    }
}

impl Limits {
    /// Whether another document may be begun.
    fn allow(&self, done: usize, since: Instant) -> bool {
        done < self.documents && (done == 0 || self.budget.is_none_or(|budget| since.elapsed() < budget))
    }
}
