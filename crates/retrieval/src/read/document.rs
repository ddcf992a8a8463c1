//! Documents of a file, with their passages.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::chunk::Chunk;

/// Kind of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Markdown.
    Markdown,
    /// Plain text.
    Text,
    /// A web page.
    Html,
    /// A PDF, of which the text is read.
    Pdf,
    /// JSON lines, a document each.
    Rows,
    /// Source code.
    Code,
}

/// A document: a file, or a row of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Its own name: the row's `_id` or `id`; otherwise empty.
    pub id: String,
    /// Its title, if it has one; it is searched with every passage.
    pub title: String,
    /// Further fields, for filters.
    pub metadata: Map<String, Value>,
    /// Its passages.
    pub passages: Vec<Passage>,
}

/// A chunk with its text and its place in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Passage {
    /// Its text.
    pub text: String,
    /// Headings that it stands under.
    pub headings: Vec<String>,
    /// Its bytes in the file; the whole file where it was extracted from one that is not text.
    pub bytes: [u64; 2],
    /// Its first and last line, from 1.
    pub lines: [u32; 2],
    /// Its page, from 1, in a PDF.
    pub page: Option<u32>,
}

/// Documents of a file, with rows that were left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileDocuments {
    /// The documents, in order.
    pub documents: Vec<Document>,
    /// Rows without text or that are not JSON objects.
    pub skipped_rows: u64,
    /// The first of them, with the reason.
    pub first_skipped: Option<String>,
}

/// Chunks as passages. `from` is the place of the text in its file: bytes before it, and the number of its first line.
pub(super) fn placed(text: &str, chunks: Vec<Chunk>, (bytes_before, first_line): (u64, u32)) -> Vec<Passage> {
    let (mut at, mut line) = (0, first_line);
    let count = |part: &str| part.bytes().filter(|byte| *byte == b'\n').count() as u32;
    let passage = |chunk: Chunk| {
        let range = chunk.range.clone();
        // Chunks begin in ascending order, apart from those of a table, which begin where the table's rows do.
        if range.start < at {
            (at, line) = (0, first_line);
        }
        line += count(&text[at..range.start]);
        at = range.start;
        let body = &text[range.clone()];
        Passage {
            lines: [line, line + count(body)],
            text: chunk.lead + body,
            headings: chunk.headings,
            bytes: [range.start, range.end].map(|place| bytes_before + place as u64),
            page: None,
        }
    };
    chunks.into_iter().map(passage).collect()
}
