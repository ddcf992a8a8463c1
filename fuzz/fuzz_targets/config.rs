//! `config.json` of models: read, written back, and planned.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fathom_train::fuzz_config(data));
