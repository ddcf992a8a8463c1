//! What a run trains on.

use std::path::PathBuf;

use fathom_base::recipe;

recipe! {
    /// What a run trains on.
    pub struct Data {
        /// Files and folders; empty: the sources of Fathom's own dependencies on this machine.
        pub paths: Vec<PathBuf>,
        /// Stages that the text passes first: a recipe of `fathom curate` by name or file, or `none`. The stages at its end that
        /// order, split, write and tokenise are left out, since the run does that itself. `auto`: `code` for the gathered sources,
        /// none for `paths`. A recipe that names its own input is read as it says where `paths` is empty.
        pub curate: String = "auto".into(),
        /// Field that holds the text in JSON lines and Parquet.
        pub text_field: String = "text".into(),
        /// Most bytes of text to read.
        pub max_bytes: u64 = 64 << 20,
        /// Share of the bytes that is synthetic key-value recall.
        pub recall_share: f64 = 0.1,
        /// Share of documents kept out of training.
        pub held_out_share: f64 = 0.02,
        /// Most bytes of one document; files of one group are joined up to it.
        pub document_bytes: u64 = 128 << 10,
        /// tokenizer.json to use; none trains one (or takes the model's).
        pub tokenizer: Option<PathBuf>,
        /// Bytes of text that the tokenizer is trained on.
        pub tokenizer_bytes: u64 = 8 << 20,
        /// What samples are drawn from, and how often; empty: the gathered text and the synthetic documents as they lie.
        pub blend: Vec<Blend>,
        /// Samples that the loader stays ahead.
        pub ahead: usize = 4,
    }

    /// A part of a blend.
    pub struct Blend {
        /// `text` (what was gathered), `drill` or `recall` (synthetic documents: short and dense, or long with facts far
        /// apart), or the prefix of a token store (`PREFIX.bin`, `PREFIX.idx`) made with the same tokenizer.
        pub source: String = "text".into(),
        /// Its share of the samples; shares need not add up to 1.
        pub weight: f64 = 1.0,
    }

    /// How often documents of some length are drawn.
    pub struct LengthWeight {
        /// Shortest document that it holds for, in tokens; of several the largest that a document reaches counts.
        pub min_tokens: usize = 0,
        /// Times in an epoch; 2.5 is twice, and a third time every second time.
        pub weight: f64 = 1.0,
    }
}
