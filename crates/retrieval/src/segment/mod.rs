//! A segment: the documents of a few files, their chunks and the inverted index of their terms, in one file.
//!
//! A segment is named by the hash of what it is made from, so that a file that exists is finished work. Its layout:
//! 8 bytes of magic, 32 of the BLAKE3 hash of the rest, the offset of each section and of the end (u64), the sections.
//! All numbers are little-endian.

mod open;
mod write;

pub(crate) use open::Segment;
pub(crate) use write::SegmentWriter;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::read::Kind;

/// First bytes of a segment, with the version of the format.
const MAGIC: &[u8; 8] = b"FATHOMR1";
/// Bytes before the offsets of the sections.
const HEAD_BYTES: usize = 40;
/// Number of sections.
const SECTIONS: usize = 11;

/// Facts of each file, as JSON.
const FILES: usize = 0;
/// Offsets of documents in [`DOCUMENTS`].
const DOCUMENT_AT: usize = 1;
/// Facts of each document, as JSON.
const DOCUMENTS: usize = 2;
/// A record of [`RECORD`] bytes for each chunk.
const CHUNKS: usize = 3;
/// Offsets of chunks in [`TEXTS`].
const TEXT_AT: usize = 4;
/// Headings and text of each chunk.
const TEXTS: usize = 5;
/// Offsets of terms in [`TERMS`].
const TERM_AT: usize = 6;
/// The terms, in ascending order of their bytes.
const TERMS: usize = 7;
/// Offsets of terms in [`POSTINGS`].
const POSTINGS_AT: usize = 8;
/// For each term: the number of chunks, then for each chunk the distance to the one before it and the count, as varints.
const POSTINGS: usize = 9;
/// For each chunk: the keys of its bands ([`crate::near`]).
const BANDS: usize = 10;

/// Bytes of a chunk's record: document, terms (u32); first and last byte (u64); first line, last line, page, bytes of
/// headings (u32).
const RECORD: usize = 40;

/// Separator of headings.
const HEADING_END: char = '\u{1f}';

/// Facts of a file of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileFacts {
    /// Its path.
    pub path: String,
    /// Its documents and chunks.
    pub documents: u64,
    pub chunks: u64,
    /// The reason why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Rows that were left out, and the first of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_rows: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_skipped: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Facts of a document, which filters see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentFacts {
    /// Path of its file.
    pub path: String,
    /// Kind of its file.
    pub kind: Kind,
    /// Its own name, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its title, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Its further fields.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::read::{Document, Passage};

    fn segment() -> Vec<u8> {
        let mut writer = SegmentWriter::default();
        let passage = |text: &str, headings: &[&str]| Passage {
            text: text.into(),
            headings: headings.iter().map(|it| it.to_string()).collect(),
            bytes: [3, 9],
            lines: [2, 4],
            page: Some(5),
        };
        let document = Document {
            id: "d".into(),
            title: "Title".into(),
            passages: vec![passage("red fox", &["A", "B"]), passage("red red hen", &[])],
            ..Document::default()
        };
        let reading = crate::read::FileDocuments { documents: vec![document], ..Default::default() };
        writer.file("a.md", Kind::Markdown, Ok(reading));
        writer.file("b.pdf", Kind::Pdf, Err("it is encrypted".into()));
        writer.finish()
    }

    #[test]
    fn a_segment_is_read_as_it_was_written() {
        let segment = Segment::of(segment(), Path::new("s")).unwrap();
        assert_eq!((segment.chunks(), segment.terms()), (2, 9));
        let files = segment.files().unwrap();
        assert_eq!((files[0].chunks, files[1].skipped.as_deref()), (2, Some("it is encrypted")));
        let chunk = segment.chunk(0).unwrap();
        assert_eq!(
            (chunk.text, chunk.headings.as_slice()),
            ("red fox", ["A".to_string(), "B".into()].as_slice())
        );
        assert_eq!((chunk.bytes, chunk.lines, chunk.page), ([3, 9], [2, 4], Some(5)));
        assert_eq!(segment.document(0).unwrap().title, "Title");
        let postings = |term: &str| segment.postings(term).map(|all| all.collect::<Vec<_>>());
        assert_eq!(postings("red"), Some(vec![(0, 1), (1, 2)]));
        assert_eq!(postings("title"), Some(vec![(0, 1), (1, 1)]));
        assert_eq!(postings("cat"), None);
    }

    #[test]
    fn a_segment_with_any_changed_byte_is_refused() {
        let whole = segment();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(Segment::of(bytes, Path::new("s")).is_err(), "byte {at}");
        }
        for most in 0..whole.len() {
            assert!(Segment::of(whole[..most].to_vec(), Path::new("s")).is_err(), "{most} bytes");
        }
    }
}
