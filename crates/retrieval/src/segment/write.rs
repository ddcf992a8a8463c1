//! Writes a segment.

use std::collections::HashMap;

use super::{
    BANDS, CHUNKS, DOCUMENT_AT, DOCUMENTS, DocumentFacts, FILES, FileFacts, HEAD_BYTES, HEADING_END, MAGIC,
    POSTINGS, POSTINGS_AT, SECTIONS, TERM_AT, TERMS, TEXT_AT, TEXTS,
};
use crate::near;
use crate::read::{Document, FileDocuments, Kind, Passage};
use crate::terms::terms;

/// Chunks with a term, while a segment is written.
#[derive(Default)]
struct Postings {
    chunks: u32,
    /// The chunk that was seen last, with its count.
    open: Option<(u32, u32)>,
    /// The last chunk in `bytes`.
    last: u32,
    bytes: Vec<u8>,
}

impl Postings {
    fn see(&mut self, chunk: u32) {
        match &mut self.open {
            Some((open, count)) if *open == chunk => *count += 1,
            _ => {
                self.close();
                self.open = Some((chunk, 1));
            }
        }
    }

    fn close(&mut self) {
        if let Some((chunk, count)) = self.open.take() {
            varint(chunk - self.last, &mut self.bytes);
            varint(count, &mut self.bytes);
            self.last = chunk;
            self.chunks += 1;
        }
    }
}

fn varint(mut number: u32, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Collects the files of a segment.
#[derive(Default)]
pub(crate) struct SegmentWriter {
    files: Vec<FileFacts>,
    sections: [Vec<u8>; SECTIONS],
    documents: u32,
    chunks: u32,
    postings: HashMap<String, Postings>,
}

impl SegmentWriter {
    /// Adds a file with its documents, or the reason why it has none.
    pub fn file(&mut self, path: &str, kind: Kind, reading: Result<FileDocuments, String>) {
        let before = (self.documents, self.chunks);
        let (mut skipped, mut rows, mut first) = (None, 0, None);
        match reading {
            Err(why) => skipped = Some(why),
            Ok(FileDocuments { documents, skipped_rows, first_skipped }) => {
                (rows, first) = (skipped_rows, first_skipped);
                documents.into_iter().for_each(|document| self.document(path, kind, document));
            }
        }
        self.files.push(FileFacts {
            path: path.to_string(),
            documents: u64::from(self.documents - before.0),
            chunks: u64::from(self.chunks - before.1),
            skipped,
            skipped_rows: rows,
            first_skipped: first,
        });
    }

    fn document(&mut self, path: &str, kind: Kind, document: Document) {
        let Document { id, title, metadata, passages } = document;
        self.offset(DOCUMENT_AT, DOCUMENTS);
        for passage in &passages {
            self.passage(&title, passage);
        }
        let facts = DocumentFacts { path: path.to_string(), kind, id, title, metadata };
        // Maps with text as keys always become JSON.
        self.sections[DOCUMENTS].extend(serde_json::to_vec(&facts).unwrap_or_default());
        self.documents += 1;
    }

    fn passage(&mut self, title: &str, passage: &Passage) {
        let (chunk, mut count, mut own) = (self.chunks, 0u32, Vec::new());
        let mut see = |term: &str| {
            match self.postings.get_mut(term) {
                Some(postings) => postings.see(chunk),
                None => self.postings.entry(term.to_string()).or_default().see(chunk),
            }
            count += 1;
        };
        terms(title, &mut see);
        passage.headings.iter().for_each(|heading| terms(heading, &mut see));
        terms(&passage.text, |term| {
            see(term);
            own.push(near::hash(term.as_bytes()));
        });
        let headings = passage.headings.join(&HEADING_END.to_string());
        let numbers = [self.documents, count];
        let places = [passage.lines[0], passage.lines[1], passage.page.unwrap_or(0), headings.len() as u32];
        let records = &mut self.sections[CHUNKS];
        numbers.iter().for_each(|number| records.extend(number.to_le_bytes()));
        passage.bytes.iter().for_each(|place| records.extend(place.to_le_bytes()));
        places.iter().for_each(|number| records.extend(number.to_le_bytes()));
        self.offset(TEXT_AT, TEXTS);
        self.sections[TEXTS].extend(headings.as_bytes());
        self.sections[TEXTS].extend(passage.text.as_bytes());
        near::bands(&own).iter().for_each(|band| self.sections[BANDS].extend(band.to_le_bytes()));
        self.chunks += 1;
    }

    /// Notes the end of a section as the offset of its next part.
    fn offset(&mut self, offsets: usize, of: usize) {
        let at = self.sections[of].len() as u64;
        self.sections[offsets].extend(at.to_le_bytes());
    }

    /// The bytes of the segment.
    pub fn finish(mut self) -> Vec<u8> {
        self.offset(DOCUMENT_AT, DOCUMENTS);
        self.offset(TEXT_AT, TEXTS);
        let mut all: Vec<(String, Postings)> = std::mem::take(&mut self.postings).into_iter().collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (term, mut postings) in all {
            postings.close();
            self.offset(TERM_AT, TERMS);
            self.offset(POSTINGS_AT, POSTINGS);
            self.sections[TERMS].extend(term.as_bytes());
            varint(postings.chunks, &mut self.sections[POSTINGS]);
            self.sections[POSTINGS].extend(postings.bytes);
        }
        self.offset(TERM_AT, TERMS);
        self.offset(POSTINGS_AT, POSTINGS);
        self.sections[FILES] = serde_json::to_vec(&self.files).unwrap_or_default();
        let mut at = (HEAD_BYTES + 8 * (SECTIONS + 1)) as u64;
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        for section in &self.sections {
            bytes.extend(at.to_le_bytes());
            at += section.len() as u64;
        }
        bytes.extend(at.to_le_bytes());
        self.sections.iter().for_each(|section| bytes.extend(section));
        let hash = blake3::hash(&bytes[HEAD_BYTES..]);
        bytes[MAGIC.len()..HEAD_BYTES].copy_from_slice(hash.as_bytes());
        bytes
    }
}
