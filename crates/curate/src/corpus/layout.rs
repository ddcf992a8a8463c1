//! Where the parts of a corpus are.

use std::path::{Path, PathBuf};

/// Path prefix of a corpus's token store, for [`Store::open`](fathom_text::store::Store::open).
pub fn store_prefix(out: &Path) -> PathBuf {
    out.join("store").join("train")
}

/// Folder of a corpus's tokenizer, for [`Tokenizer::from_dir`](fathom_text::tokenizer::Tokenizer::from_dir).
pub fn tokenizer_dir(out: &Path) -> PathBuf {
    out.join("tokenizer")
}
