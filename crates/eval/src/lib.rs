//! Tasks and metrics over anything that implements [`fathom_base::Generate`] or [`fathom_base::Score`].
//!
//! Three measurements: loss by position ([`loss_of_sequences`]), bits per byte of unseen text next to those of gzip
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
pub use position::{
    ByPosition, bucket_bounds, loss_by_position, loss_by_position_same_documents, loss_of_sequences, mixed,
};

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
    /// No further document is started that would, if it takes as long as those before it on average, end after this time; `None` sets
    /// no limit, and then two runs agree exactly.
    pub budget: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { documents: usize::MAX, budget: None }
    }
}

impl Limits {
    /// Whether another document may be started.
    fn allow(&self, done: usize, since: Instant) -> bool {
        self.allow_after(done, since.elapsed())
    }

    /// The same, of the time that those before it took.
    fn allow_after(&self, done: usize, taken: Duration) -> bool {
        let next = taken.div_f64(done.max(1) as f64);
        done < self.documents && (done == 0 || self.budget.is_none_or(|budget| taken + next <= budget))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_document_is_started_that_would_end_too_late() {
        let [second, limits] = [Duration::from_secs(1), Duration::from_secs(10)];
        let limits = Limits { documents: 5, budget: Some(limits) };
        for (done, seconds, expected) in
            [(0, 99, true), (1, 5, true), (1, 6, false), (4, 8, true), (4, 9, false), (5, 1, false)]
        {
            assert_eq!(limits.allow_after(done, second * seconds), expected, "{done} in {seconds} s");
        }
        assert!(Limits { budget: None, ..limits }.allow_after(4, second * 99));
    }
}
