//! Megatron's `.idx` files: the first eight bytes are the size of the `.bin` file, the rest is the index.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fathom_text::fuzz::fuzz_idx(data));
