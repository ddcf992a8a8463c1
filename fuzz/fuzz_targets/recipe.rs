//! Recipes: a setting on the first line, a TOML file after it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fathom_base::recipe::fuzz_recipe(data));
