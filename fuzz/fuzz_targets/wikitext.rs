//! Wikitext.
#![no_main]

use fathom_prose::extract::Wikitext;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = Wikitext::default().extract(&String::from_utf8_lossy(data));
});
