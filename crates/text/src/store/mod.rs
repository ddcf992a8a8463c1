//! Token stores: Megatron's indexed dataset (`.bin` + `.idx`), with a side file of metadata per document.
//!
//! The `.bin` file contains raw little-endian ids without a header. Layout of the `.idx` file, as written by
//! `megatron/core/datasets/indexed_dataset.py`:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 9 | `MMIDIDX` and two zero bytes |
//! | 9 | 8 | version, u64 = 1 |
//! | 17 | 1 | dtype code: 1 u8, 4 i32, 5 i64, 8 u16 (others hold no ids and are refused) |
//! | 18 | 8 | S, number of sequences, u64 |
//! | 26 | 8 | D, length of the document index, u64 = documents + 1 |
//! | 34 | 4 S | sequence lengths in tokens, i32 |
//! | 34 + 4 S | 8 S | byte offset of each sequence in `.bin`, i64 |
//! | 34 + 12 S | 8 D | document bounds as sequence numbers, i64, from 0 to S |
//! | then | S or 0 | sequence modes, i8, multimodal stores only; ignored here |
//!
//! This crate writes one sequence per document and ends each document with the end-of-text id, so that a packed label
//! can mark the end of the text. The pair is accompanied by `PREFIX.json` ([`Header`]) and `PREFIX.docs` (one
//! [`DocMeta`] per document); stores of other tools lack both and can still be read.

mod column;
mod column_writer;
mod header;
mod map;
mod neighbours;
mod reader;
mod writer;

pub use column::Column;
pub use column_writer::ColumnWriter;
pub(crate) use header::content_hash;
pub use header::{DocMeta, Header, length_bucket};
pub use neighbours::{ChunkPlace, Chunks, Neighbours};
pub use reader::Store;
pub use writer::StoreWriter;

use crate::error::{Error, OrIo, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) use reader::check_index;

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const VERSION: u64 = 1;
const IDX_HEADER_BYTES: u64 = 34;

/// Vocabularies of at least this size are stored as i32 (Megatron's `DType.optimal_dtype`).
const FIRST_I32_VOCABULARY: u64 = 65_500;

/// Storage type of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdType {
    /// One byte, code 1.
    U8,
    /// Two bytes, code 8.
    U16,
    /// Four bytes, code 4.
    I32,
    /// Eight bytes, code 5.
    I64,
}

impl IdType {
    /// Type chosen by Megatron's writer: u16 below 65 500 ids, otherwise i32.
    pub fn for_vocabulary(vocab_size: u64) -> Self {
        if vocab_size < FIRST_I32_VOCABULARY { Self::U16 } else { Self::I32 }
    }

    /// Bytes of one id.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::U8 => 1,
            Self::I32 => 4,
            Self::I64 => 5,
            Self::U16 => 8,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::U8, Self::U16, Self::I32, Self::I64].into_iter().find(|dtype| dtype.code() == code)
    }
}

/// Path of one of a store's files: `PREFIX.bin`, `PREFIX.idx`, `PREFIX.json`, `PREFIX.docs`, and its columns.
fn file(prefix: &Path, suffix: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Fingerprint of a store's content: BLAKE3 of its index, its document metadata and its tokenizer's hash.
fn fingerprint(index: &[u8], docs: &[u8], tokenizer_hash: Option<&str>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(index);
    hasher.update(docs);
    hasher.update(tokenizer_hash.unwrap_or_default().as_bytes());
    *hasher.finalize().as_bytes()
}

/// Writes a file atomically: temporary name, fsync, rename, fsync of the folder.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = file(path, ".tmp");
    let mut out = std::fs::File::create(&temporary).or_io("create", &temporary)?;
    out.write_all(bytes).or_io("write", &temporary)?;
    out.sync_all().or_io("flush", &temporary)?;
    publish(&temporary, path)
}

/// Renames a finished file to its final name and makes the rename durable.
fn publish(temporary: &Path, path: &Path) -> Result<()> {
    std::fs::rename(temporary, path).or_io("rename a finished file to", path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).or_io("flush the folder of", path)
}

fn format_error(path: &Path, offset: u64, field: &'static str, reason: String) -> Error {
    Error::Format { path: path.to_owned(), offset, field, reason }
}
