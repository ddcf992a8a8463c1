//! Headers of `.gguf` files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fathom_base::gguf::fuzz(data));
