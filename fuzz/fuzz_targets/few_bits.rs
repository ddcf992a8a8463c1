//! Folders of models in few bits.
#![no_main]

#[path = "../bodies/few_bits.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
