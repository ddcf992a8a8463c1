//! The training data of a run.

use std::path::PathBuf;

use fathom_base::recipe;

recipe! {
    /// The training data.
    pub struct Data {
        /// Files and folders. `cargo:` alone stands for the sources and docs of the crates in cargo's folder on this machine.
        pub paths: Vec<PathBuf>,
        /// Curation of the text: a recipe of `fathom curate` by name or file, or `none`. Its final stages that order, split, write
        /// and tokenise are skipped, since the run does this itself. `auto`: `code` for `cargo:`, none for other paths. If `paths` is
        /// empty, a recipe that names its own input reads that.
        pub curate: String = "auto".into(),
        /// Field that holds the text in JSON lines and Parquet.
        pub text_field: String = "text".into(),
        /// Maximum bytes of text to read; none for all of it. What is not read is reported.
        pub max_bytes: Option<u64>,
        /// Fraction of the bytes that is synthetic key-value recall, added to the text; 0 for none.
        pub recall_share: f64 = 0.0,
        /// Fraction of the documents held out from training.
        pub held_out_share: f64 = 0.02,
        /// Maximum bytes of one document; files of one folder (of one crate) are joined up to this size.
        pub document_bytes: u64 = 128 << 10,
        /// The tokenizer.json to use; none for the model's, or else a newly trained one.
        pub tokenizer: Option<PathBuf>,
        /// Bytes of text that the tokenizer is trained on.
        pub tokenizer_bytes: u64 = 8 << 20,
        /// The sources of samples and their weights; empty for the gathered text and synthetic documents in their natural
        /// proportions.
        pub blend: Vec<Blend>,
        /// Number of samples that the loader prefetches.
        pub ahead: usize = 4,
    }

    /// A part of a blend.
    pub struct Blend {
        /// `text` (the gathered text), `drill` or `recall` (synthetic documents: short and dense, or long with distant facts),
        /// or the prefix of a token store (`PREFIX.bin`, `PREFIX.idx`) made with the same tokenizer.
        pub source: String = "text".into(),
        /// Its relative weight; weights need not add up to 1.
        pub weight: f64 = 1.0,
    }

    /// How often documents of some length are drawn.
    pub struct LengthWeight {
        /// Applies to documents of at least this many tokens; of several entries, the largest that a document reaches.
        pub min_tokens: usize = 0,
        /// Times per epoch; 2.5 means twice, and a third time in half of the cases.
        pub weight: f64 = 1.0,
    }
}

/// The path that stands for the sources of the crates in cargo's folder.
const CARGO: &str = "cargo:";

impl Data {
    /// Whether the text is that of the crates in cargo's folder.
    pub fn is_gathered(&self) -> bool {
        self.paths.iter().any(|path| path.as_os_str() == CARGO)
    }

    /// Why the text cannot be found, if so: `paths` is empty and `curate` names no recipe, which could have an input of its own,
    /// or the path of gathered text is one of several.
    pub(crate) fn without_text(&self) -> Option<&'static str> {
        if self.paths.is_empty() && matches!(self.curate.as_str(), "auto" | "none") {
            return Some(
                "is empty: nothing says what is trained on; give files or folders (data.paths=PATH,...), or \"cargo:\" for the \
                 sources of the crates in cargo's folder",
            );
        }
        (self.is_gathered() && self.paths.len() > 1)
            .then_some("holds \"cargo:\", which stands alone; leave it or the others out")
    }
}
