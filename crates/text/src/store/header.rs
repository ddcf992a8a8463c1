//! Metadata of a store (`PREFIX.json`) and of each document (`PREFIX.docs`).
//!
//! `PREFIX.docs` is `FTHMDOCS`, version u64 = 1, count u64, then 40 bytes per document, little endian: content hash
//! (16), bytes of text (8), tokens (8), source (4), length bucket (4).

use super::format_error;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

const DOCS_MAGIC: &[u8; 8] = b"FTHMDOCS";
const DOCS_VERSION: u64 = 1;
const DOCS_HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 40;

/// Metadata of a whole store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Layout version of the side files: 1.
    pub version: u32,
    /// Size of the vocabulary; all ids are below it.
    pub vocab_size: u64,
    /// Storage type of an id.
    pub dtype: super::IdType,
    /// Id that ends every document.
    pub eos: Option<u32>,
    /// [`crate::Tokenizer::hash`] of the tokenizer that made the ids.
    pub tokenizer_hash: Option<String>,
    /// Source names indexed by [`DocMeta::source`].
    pub sources: Vec<String>,
    /// Number of documents; filled by the writer.
    pub documents: u64,
    /// Number of tokens; filled by the writer.
    pub tokens: u64,
    /// UTF-8 bytes of all documents, the denominator of bits per byte; filled by the writer.
    pub text_bytes: u64,
    /// Number of consecutive documents that stay together, such as answers to one prompt. Each such group lies in one
    /// sample.
    #[serde(default = "alone", skip_serializing_if = "is_alone")]
    pub group: u32,
    /// Number of values per document ([`super::Column::Values`]).
    #[serde(default, skip_serializing_if = "is_none")]
    pub values: u32,
}

fn alone() -> u32 {
    1
}

fn is_alone(group: &u32) -> bool {
    *group == 1
}

fn is_none(values: &u32) -> bool {
    *values == 0
}

impl Header {
    /// Creates a header for a new store; the writer fills in the counts.
    pub fn new(vocab_size: u64) -> Self {
        Self {
            version: 1,
            vocab_size,
            dtype: super::IdType::for_vocabulary(vocab_size),
            eos: None,
            tokenizer_hash: None,
            sources: Vec::new(),
            documents: 0,
            tokens: 0,
            text_bytes: 0,
            group: 1,
            values: 0,
        }
    }

    /// Creates a header with the tokenizer's hash and its end-of-text id.
    ///
    /// # Errors
    /// The tokenizer has no end-of-text token or cannot be written as JSON.
    pub fn for_tokenizer(tokenizer: &crate::Tokenizer) -> Result<Self> {
        let mut header = Self::new(tokenizer.vocab_size() as u64);
        header.eos = Some(tokenizer.require_eos()?);
        header.tokenizer_hash = Some(tokenizer.hash()?);
        Ok(header)
    }

    pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let bad = |key: &str, reason: String| Error::Json { path: path.to_owned(), key: key.into(), reason };
        let header: Self = serde_json::from_slice(bytes).map_err(|e| bad("", e.to_string()))?;
        if header.version != 1 {
            return Err(bad(
                "version",
                format!("{} is not a version this program reads (1)", header.version),
            ));
        }
        if header.group == 0 || !header.documents.is_multiple_of(u64::from(header.group)) {
            let reason = format!("{} does not divide {} documents", header.group, header.documents);
            return Err(bad("group", reason));
        }
        if let Some(eos) = header.eos.filter(|&eos| u64::from(eos) >= header.vocab_size) {
            return Err(bad("eos", format!("{eos} is outside the vocabulary of {} ids", header.vocab_size)));
        }
        Ok(header)
    }
}

/// Metadata of one document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DocMeta {
    /// Index of its source in [`Header::sources`].
    pub source: u32,
    /// 128-bit content hash; decides the held-out split and identifies the document for removal.
    pub hash: u128,
    /// UTF-8 bytes of its text.
    pub text_bytes: u64,
}

impl DocMeta {
    /// Metadata of a text: its length and the first 128 bits of its BLAKE3 hash.
    pub fn of_text(text: &str, source: u32) -> Self {
        Self { source, hash: content_hash(text.as_bytes()), text_bytes: text.len() as u64 }
    }
}

/// The first 128 bits of BLAKE3.
pub(crate) fn content_hash(bytes: &[u8]) -> u128 {
    let mut first = [0; 16];
    first.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    u128::from_le_bytes(first)
}

/// Length bucket of a document: floor(log2(tokens)), 0 for an empty one.
pub fn length_bucket(tokens: u64) -> u32 {
    tokens.checked_ilog2().unwrap_or(0)
}

/// Header of `PREFIX.docs`; rewritten when the count is known.
pub(super) fn docs_header(count: u64) -> Vec<u8> {
    let mut bytes = DOCS_MAGIC.to_vec();
    bytes.extend(DOCS_VERSION.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes
}

/// One record of `PREFIX.docs`.
pub(super) fn docs_record(meta: &DocMeta, tokens: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..16].copy_from_slice(&meta.hash.to_le_bytes());
    record[16..24].copy_from_slice(&meta.text_bytes.to_le_bytes());
    record[24..32].copy_from_slice(&tokens.to_le_bytes());
    record[32..36].copy_from_slice(&meta.source.to_le_bytes());
    record[36..].copy_from_slice(&length_bucket(tokens).to_le_bytes());
    record
}

/// Checks the header and size of `PREFIX.docs` against the number of documents.
pub(super) fn check_docs(bytes: &[u8], documents: u64, path: &Path) -> Result<()> {
    let bad = |offset, field, reason| Err(format_error(path, offset, field, reason));
    if bytes.len() < DOCS_HEADER_BYTES || &bytes[..8] != DOCS_MAGIC {
        return bad(0, "magic", "this is not a document side file".into());
    }
    let version = u64_at(bytes, 8);
    if version != DOCS_VERSION {
        return bad(8, "version", format!("{version} is not a version this program reads ({DOCS_VERSION})"));
    }
    let count = u64_at(bytes, 16);
    if count != documents {
        return bad(16, "count", format!("{count} documents, but the index has {documents}"));
    }
    let expected = u128::from(count) * RECORD_BYTES as u128 + DOCS_HEADER_BYTES as u128;
    if bytes.len() as u128 != expected {
        return bad(
            16,
            "count",
            format!("{count} documents need {expected} bytes, the file has {}", bytes.len()),
        );
    }
    Ok(())
}

/// Metadata and token count of document `doc` in checked bytes.
pub(super) fn docs_at(bytes: &[u8], doc: usize) -> (DocMeta, u64) {
    let at = DOCS_HEADER_BYTES + doc * RECORD_BYTES;
    let mut hash = [0; 16];
    hash.copy_from_slice(&bytes[at..at + 16]);
    let mut source = [0; 4];
    source.copy_from_slice(&bytes[at + 32..at + 36]);
    let meta = DocMeta {
        source: u32::from_le_bytes(source),
        hash: u128::from_le_bytes(hash),
        text_bytes: u64_at(bytes, at + 16),
    };
    (meta, u64_at(bytes, at + 24))
}

/// Little-endian u64 at an offset; the caller has checked the bounds.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
