//! What a corpus is made from, and the checks of its settings.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::curated::Curation;
use crate::error::Error;

/// Where the text comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The text of all crates below `roots` ([`default_roots`](crate::default_roots)), or of the fallback folder when
    /// they hold none.
    Default {
        /// Folders of unpacked crates.
        roots: Vec<PathBuf>,
        /// A repository.
        fallback: Option<PathBuf>,
    },
    /// The user's own files and folders.
    Paths(Vec<PathBuf>),
}

/// Where the tokenizer comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerFrom {
    /// A `tokenizer.json`, or a model folder that holds one.
    File(PathBuf),
    /// Byte-level BPE trained on a sample of the text, with `<|endoftext|>` as its end-of-text token (id 0).
    Train {
        /// Ids at most, the 256 bytes and the special token included.
        vocab: usize,
        /// Bytes of text to train on at most.
        sample_bytes: usize,
    },
}

/// Everything that decides the bytes of a corpus, besides the text itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorpusSpec {
    /// Where the text comes from.
    pub input: Input,
    /// The field (JSON) or column (Parquet) that holds the text.
    pub text_field: String,
    /// The stages that the texts pass first; the user runs [`curation`](crate::curation) before [`build`](crate::build).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curation: Option<Curation>,
    /// Bytes of text at most, synthetic documents not counted; none for all of it.
    pub max_bytes: Option<u64>,
    /// Neighbouring files of one group are joined into documents up to this size; whole files are never cut. Also the
    /// size of the longest synthetic document.
    pub document_bytes: usize,
    /// Share of the text, in bytes, that is synthetic recall (0 to below 1). By bytes and not by documents, because
    /// what a model sees is proportional to bytes, and joined documents are a hundred times longer than short ones.
    pub recall_share: f64,
    /// Where the tokenizer comes from.
    pub tokenizer: TokenizerFrom,
    /// Share of documents kept out of training, chosen by the hash of their content (0 to below 1). The store holds
    /// them; the loader leaves them out.
    pub held_out: f64,
    /// Key of every choice.
    pub seed: u64,
    /// The folder to fill. The one field that does not decide any bytes.
    #[serde(skip)]
    pub out: PathBuf,
}

impl CorpusSpec {
    /// The quickstart's settings: 48 MB at most, documents of up to 256 KiB, a tenth recall, 5 % held out, and a
    /// vocabulary of 4096 trained on 8 MiB.
    pub fn new(input: Input, out: PathBuf) -> CorpusSpec {
        CorpusSpec {
            input,
            text_field: "text".to_owned(),
            curation: None,
            max_bytes: Some(48_000_000),
            document_bytes: 256 << 10,
            recall_share: 0.1,
            tokenizer: TokenizerFrom::Train { vocab: 4096, sample_bytes: 8 << 20 },
            held_out: 0.05,
            seed: 0,
            out,
        }
    }

    /// Refuses what cannot be, before anything is read.
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

    /// Whether the texts are those of crates.
    pub(super) fn is_gathered(&self) -> bool {
        let named = self.curation.as_ref().is_some_and(Curation::names_input);
        matches!(self.input, Input::Default { .. }) && !named
    }

    /// The name of a document's source for the report: its crate, the path that the user named, or what a curation calls it.
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
