//! The event log of a run: `metrics.jsonl`, and its report, figures and comparison.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fathom_report::fuzz_metrics(data));
