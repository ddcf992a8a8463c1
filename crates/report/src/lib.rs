//! Views of a run: a self-contained page and the comparison of two runs, made only from the event log `metrics.jsonl`
//! ([`fathom_base::metrics`]). They can be made anywhere and at any time, even for a run that was killed. This crate
//! also writes TensorBoard files and traces while a run is in progress.
//!
//! ```text
//! metrics.jsonl -> RunLog -> html::page          one self-contained report.html
//!                         -> diff::compare       two runs side by side
//!               -> runs   -> board::Board        many runs, summarised and followed while they go on
//! tensorboard::EventFile                         scalars of a run in progress
//! trace::TraceWriter                             spans of a profile, for Perfetto
//! ```
//!
//! This crate knows nothing about tensors or about the products whose logs it reads.

pub mod board;
pub mod diff;
mod error;
pub mod html;
mod log;
pub mod objective;
pub mod plots;
pub mod runs;
pub mod sinks;
mod smooth;
pub mod svg;
pub mod tensorboard;
pub mod trace;
pub mod verdict;

/// Entry point for fuzzing: reads `metrics.jsonl` line by line and makes all views of it.
#[doc(hidden)]
pub fn fuzz_metrics(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n');
    let events: Vec<serde_json::Value> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let log = RunLog::from_events(&events);
    html::page(&log);
    objective::verdicts(&log).iter().for_each(|verdict| drop(verdict.to_string()));
    let _ = diff::compare(&log, &log).to_string();
}

pub use error::{Error, Result};
pub use log::RunLog;
