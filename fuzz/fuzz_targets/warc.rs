//! Crawls, dumps and archives: the first byte chooses the kind of file, the rest is its content.
//!
//! The readers are compiled here by themselves: as a part of `fathom-curate` they would bring the query engine along, which
//! a sanitizer takes an hour for.
#![no_main]
#![allow(dead_code, unused_imports, unexpected_cfgs)]

#[path = "../../crates/curate/src/counters.rs"]
mod counters;
#[path = "../../crates/curate/src/document.rs"]
mod document;
#[path = "../../crates/curate/src/error.rs"]
mod error;
#[path = "../../crates/curate/src/files.rs"]
mod files;
#[path = "../../crates/curate/src/read/mod.rs"]
mod read;

use read::{InputFile, RawOptions};

const NAMES: [&str; 7] = [
    "a.warc",
    "a.warc.gz",
    "a.warc.zst",
    "a-pages-articles.xml",
    "a-pages-articles.xml.bz2",
    "a.tar",
    "a.jsonl.gz",
];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&kind, content)) = data.split_first() else { return };
    let name = NAMES[kind as usize % NAMES.len()];
    let options = RawOptions { max_document_bytes: 1 << 16, ..RawOptions::default() };
    let input = std::io::Cursor::new(content.to_vec());
    if let Ok(records) = InputFile::read_from(name, Box::new(input), &options) {
        for record in records.flatten() {
            assert!(record.content.len() <= 16 << 20);
        }
    }
});
