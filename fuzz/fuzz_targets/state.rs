//! `state.json` of checkpoints.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fathom_train::fuzz::fuzz_state(data));
