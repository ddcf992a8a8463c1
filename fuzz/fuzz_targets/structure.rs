//! Schemas, expressions and grammars of requests.
#![no_main]

#[path = "../bodies/structure.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
