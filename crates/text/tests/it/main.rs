//! Tests of the public interface with real files and threads.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

mod loader;
mod recall;
mod store;
mod stream;
mod tokenizer;

use fathom_text::Tokenizer;
use std::sync::OnceLock;

/// Source text of this repository: prose, code and punctuation.
pub fn corpus() -> Vec<String> {
    let mut texts = vec![include_str!("../../../../LICENSE").to_owned()];
    for source in [
        include_str!("../../src/store/reader.rs"),
        include_str!("../../src/recall/mod.rs"),
        include_str!("../../src/tokenizer/mod.rs"),
        include_str!("../../src/loader/mod.rs"),
    ] {
        texts.push(source.to_owned());
    }
    texts
}

const EOS: &str = "<|endoftext|>";

/// A tokenizer trained once for all tests.
pub fn tokenizer() -> &'static Tokenizer {
    static TRAINED: OnceLock<Tokenizer> = OnceLock::new();
    TRAINED.get_or_init(|| Tokenizer::train_bpe(corpus().into_iter(), 1000, &[EOS, "<|bos|>"]).unwrap())
}
