//! Bodies of requests, at every route.
#![no_main]

// It is the body of two targets.
#[allow(dead_code)]
#[path = "../bodies/serve.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::request(data));
