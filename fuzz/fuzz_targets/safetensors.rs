//! Headers of `.safetensors` files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fathom_model::fuzz_safetensors(data));
