//! Views of a run: one offline page and the comparison of two runs, drawn from the event log `metrics.jsonl` alone
//! ([`fathom_base::metrics`]), so they can be made anywhere, at any time, also of a run that was killed; and the files that
//! are written while a run goes on.
//!
//! ```text
//! metrics.jsonl -> RunLog -> html::page          one self-contained report.html
//!                         -> diff::compare       two runs side by side
//! tensorboard::EventFile                         scalars of a run that goes on
//! trace::TraceWriter                             spans of a profile, for Perfetto
//! ```
//!
//! This crate knows nothing of tensors and of the products whose logs it reads.

pub mod diff;
mod error;
pub mod html;
mod log;
pub mod plots;
mod smooth;
pub mod svg;
pub mod tensorboard;
pub mod trace;
pub mod verdict;

pub use error::{Error, Result};
pub use log::RunLog;
