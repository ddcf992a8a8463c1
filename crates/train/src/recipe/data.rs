//! The training data of a run.

use std::path::PathBuf;

use fathom_base::recipe;

recipe! {
    /// The training data.
    pub struct Data {
        /// Files and folders; empty for the sources of Fathom's own dependencies on this machine.
        pub paths: Vec<PathBuf>,
        /// Curation of the text: a recipe of `fathom curate` by name or file, or `none`. Its final stages that order, split, write
        /// and tokenise are skipped, since the run does this itself. `auto`: `code` for the gathered sources, none for `paths`. If
        /// `paths` is empty, a recipe that names its own input reads that.
        pub curate: String = "auto".into(),
        /// Field that holds the text in JSON lines and Parquet.
        pub text_field: String = "text".into(),
        /// Maximum bytes of text to read.
        pub max_bytes: u64 = 64 << 20,
        /// Fraction of the bytes that is synthetic key-value recall.
        pub recall_share: f64 = 0.1,
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
