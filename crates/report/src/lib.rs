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
pub mod objective;
pub mod plots;
mod smooth;
pub mod svg;
pub mod tensorboard;
pub mod trace;
pub mod verdict;

/// For fuzzing: `metrics.jsonl` as given, line by line, and everything that is drawn from it.
#[doc(hidden)]
pub fn fuzz_metrics(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n');
    let events: Vec<serde_json::Value> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let log = RunLog::from_events(&events);
    html::page(&log);
    verdict::verdicts(&log).iter().for_each(|verdict| drop(verdict.to_string()));
    let _ = diff::compare(&log, &log).to_string();
}

pub use error::{Error, Result};
pub use log::RunLog;
