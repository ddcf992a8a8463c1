//! The manifest of an index: its options, its files and its segments. It is the last file that is published.
//!
//! A line of JSON, then a line with its BLAKE3 hash.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files;
use crate::store::address::StoreEntry;

/// Version of the format.
pub(crate) const FORMAT: u32 = 1;
/// Name of the manifest.
pub(crate) const NAME: &str = "manifest";
/// Folder of the segments.
pub(crate) const SEGMENTS: &str = "segments";
/// Folder of the vectors.
pub(crate) const VECTORS: &str = "vectors";

/// Options that the bytes of an index depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Bytes of a chunk, at most.
    pub chunk_bytes: usize,
    /// True if personal data is replaced by marks.
    pub personal_data_out: bool,
}

/// The encoder of an index's vectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderFacts {
    /// Its name, for messages.
    pub name: String,
    /// Fingerprint of its weights, tokenizer and settings.
    pub fingerprint: String,
    /// Numbers of a vector.
    pub dimensions: usize,
}

/// A file of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// Its path, as the arguments name it.
    pub path: String,
    /// Its size and time of change, by which a changed file is recognised without reading it.
    pub bytes: u64,
    pub modified_ns: u64,
    /// BLAKE3 hash of its bytes.
    pub hash: String,
    /// The reason why it has no chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Rows that were left out, with the first reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<(u64, String)>,
}

/// A segment of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentEntry {
    /// Name of its file.
    pub name: String,
    /// Its files, documents, chunks and terms.
    pub files: usize,
    pub documents: u64,
    pub chunks: u64,
    pub terms: u64,
    /// Name of the file of its vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<String>,
}

/// The manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub format: u32,
    pub settings: Settings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<EncoderFacts>,
    /// The store outside that searches ask for vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreEntry>,
    /// Name of the file for approximate search, if there are many vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approximate: Option<String>,
    /// Files in ascending order of their paths; the segments have them in this order.
    pub files: Vec<FileEntry>,
    pub segments: Vec<SegmentEntry>,
    /// Near-duplicate chunks, each with the earlier one, numbered over all segments.
    pub duplicates: Vec<(u32, u32)>,
}

impl Manifest {
    /// Reads the manifest of a folder; `None` if there is none.
    ///
    /// # Errors
    /// Damaged, or of another version.
    pub fn read(folder: &Path) -> Result<Option<Manifest>> {
        let path = folder.join(NAME);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(Error::damaged(&path, "it is not text"));
            }
            text => text.map_err(|error| Error::io("read", &path, error))?,
        };
        let (body, hash) =
            text.split_once('\n').ok_or_else(|| Error::damaged(&path, "it has no second line"))?;
        if blake3::hash(body.as_bytes()).to_hex().as_str() != hash.trim_end_matches('\n') {
            return Err(Error::damaged(&path, "its hash is another one"));
        }
        let manifest: Manifest = serde_json::from_str(body)
            .map_err(|error| Error::damaged(&path, format!("it cannot be read: {error}")))?;
        if manifest.format != FORMAT {
            let why =
                format!("it has version {} of the format, and this program reads {FORMAT}", manifest.format);
            return Err(Error::damaged(&path, why));
        }
        Ok(Some(manifest))
    }

    /// Publishes the manifest.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let body = serde_json::to_string(self).unwrap_or_default();
        let hash = blake3::hash(body.as_bytes()).to_hex();
        files::publish(&folder.join(NAME), &[body.as_bytes(), b"\n", hash.as_bytes(), b"\n"])?;
        files::sync(folder)
    }
}

/// Path of a segment.
pub(crate) fn segment(folder: &Path, name: &str) -> PathBuf {
    folder.join(SEGMENTS).join(name)
}
