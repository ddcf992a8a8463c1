//! A `tokenizer.json` that is accepted, in use: encoded with, decoded with, written and read again.
#![no_main]

libfuzzer_sys::fuzz_target!(
    // Calls of the foreign crate are guarded; only panics that leave our functions are findings.
    init: drop(std::panic::take_hook()),
    |data: &[u8]| fathom_text::fuzz::fuzz_tokenizer_use(data)
);
