//! GGUF files as models.
#![no_main]

#[path = "../bodies/gguf_model.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
