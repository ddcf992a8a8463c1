//! `tokenizer.json` and the configuration files next to it.
#![no_main]

libfuzzer_sys::fuzz_target!(
    // Reading catches panics of the foreign parser; only those that leave our functions are findings.
    init: drop(std::panic::take_hook()),
    |data: &[u8]| fathom_text::fuzz::fuzz_tokenizer_config(data)
);
