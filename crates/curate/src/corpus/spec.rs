//! Specification of a corpus and validation of its settings.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::curation::Curation;
use crate::error::Error;

/// Source of the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// All crates below `roots` ([`default_roots`](crate::default_roots)), or the fallback folder if they hold none.
    Default {
        /// Folders of unpacked crates.
        roots: Vec<PathBuf>,
        /// Fallback folder, a repository.
        fallback: Option<PathBuf>,
    },
    /// The user's own files and folders.
    Paths(Vec<PathBuf>),
}

/// Source of the tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerFrom {
    /// A `tokenizer.json`, or a model folder that holds one.
    File(PathBuf),
    /// Byte-level BPE trained on a sample of the text, with `<|endoftext|>` as its end-of-text token, the last special token.
    Train {
        /// Maximum vocabulary size, including the 256 bytes and the special token.
        vocab: usize,
        /// Maximum bytes of text to train on.
        sample_bytes: usize,
        /// Further special tokens, which have the first ids.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        special: Vec<String>,
    },
}

/// All settings that determine the bytes of a corpus for a given text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorpusSpec {
    /// Source of the text.
    pub input: Input,
    /// JSON field or Parquet column that holds the text.
    pub text_field: String,
    /// Curation stages applied to the texts first; the caller runs [`curation`](crate::curation) before
    /// [`build`](crate::build).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curation: Option<Curation>,
    /// Maximum bytes of text, excluding synthetic documents; unlimited if none.
    pub max_bytes: Option<u64>,
    /// Neighbouring files of one group are joined into documents of up to this many bytes; whole files are never cut.
    /// Also the size of the longest synthetic document.
    pub document_bytes: usize,
    /// Fraction of the text's bytes that is synthetic recall (0 to below 1). Measured in bytes because the model's
    /// exposure is proportional to bytes, and joined documents are a hundred times longer than short ones.
    pub recall_share: f64,
    /// Source of the tokenizer.
    pub tokenizer: TokenizerFrom,
    /// Fraction of documents held out from training, selected by content hash (0 to below 1). The store contains
    /// them; the loader skips them.
    pub held_out: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Output folder. The only field that does not affect the bytes.
    #[serde(skip)]
    pub out: PathBuf,
}

impl CorpusSpec {
    /// Creates the quickstart's specification: at most 48 MB, documents of up to 256 KiB, a tenth recall, 5 % held
    /// out, and a vocabulary of 4096 trained on 8 MiB.
    pub fn new(input: Input, out: PathBuf) -> CorpusSpec {
        CorpusSpec {
            input,
            text_field: "text".to_owned(),
            curation: None,
            max_bytes: Some(48_000_000),
            document_bytes: 256 << 10,
            recall_share: 0.1,
            tokenizer: TokenizerFrom::Train { vocab: 4096, sample_bytes: 8 << 20, special: Vec::new() },
            held_out: 0.05,
            seed: 0,
            out,
        }
    }

    /// Rejects invalid settings before anything is read.
    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse =
            |key, found: String, advice: &str| Err(Error::Setting { key, found, advice: advice.to_owned() });
        for (key, share) in [("recall_share", self.recall_share), ("held_out", self.held_out)] {
            if !(0.0..1.0).contains(&share) {
                return refuse(key, share.to_string(), "a share is at least 0 and below 1");
            }
        }
        if self.max_bytes == Some(0) {
            return refuse("max_bytes", "0".into(), "nothing would be read; give a size, for example 48 MB");
        }
        if self.document_bytes < 1 << 10 {
            return refuse(
                "document_bytes",
                self.document_bytes.to_string(),
                "documents need 1024 bytes or more",
            );
        }
        match &self.tokenizer {
            TokenizerFrom::Train { sample_bytes: 0, .. } => {
                refuse("tokenizer.sample_bytes", "0".into(), "a tokenizer needs text to train on")
            }
            TokenizerFrom::Train { vocab, .. } if *vocab < 257 => refuse(
                "tokenizer.vocab",
                vocab.to_string(),
                "256 bytes and one special token need 257 or more",
            ),
            _ => Ok(()),
        }
    }

    /// Returns true if the texts come from gathered crates.
    pub(super) fn is_gathered(&self) -> bool {
        let named = self.curation.as_ref().is_some_and(Curation::names_input);
        matches!(self.input, Input::Default { .. }) && !named
    }

    /// Name of a document's source in the report: its crate, the user-supplied path, or the source named by a
    /// curation.
    pub(super) fn source_of(&self, document: &str) -> String {
        match &self.input {
            Input::Default { .. } if !self.is_gathered() => document.to_owned(),
            Input::Default { .. } => document.split('/').next().unwrap_or(document).to_owned(),
            Input::Paths(paths) => {
                let names = paths.iter().map(|path| path.display().to_string());
                let longest =
                    names.filter(|name| document.starts_with(name.as_str())).max_by_key(String::len);
                longest.unwrap_or_else(|| document.to_owned())
            }
        }
    }
}
