//! Reads a segment. Its hash is checked when it is opened; places in it are checked where they are used.

use std::ops::Deref;
use std::path::Path;

use mmap_guard::FileData;

use super::{
    BANDS, CHUNKS, DOCUMENT_AT, DOCUMENTS, DocumentFacts, FILES, FileFacts, HEAD_BYTES, HEADING_END, MAGIC,
    POSTINGS, POSTINGS_AT, RECORD, SECTIONS, TERM_AT, TERMS, TEXT_AT, TEXTS,
};
use crate::error::{Error, Result};
use crate::map;
use crate::near::{BAND_COUNT, Bands};

/// A segment, mapped or in memory.
pub(crate) struct Segment<B = FileData> {
    bytes: B,
    at: [usize; SECTIONS + 1],
    chunks: usize,
    terms: u64,
}

/// A chunk of a segment.
#[derive(Debug)]
pub(crate) struct StoredChunk<'a> {
    pub document: u32,
    pub text: &'a str,
    pub headings: Vec<String>,
    pub bytes: [u64; 2],
    pub lines: [u32; 2],
    pub page: Option<u32>,
}

impl Segment {
    /// Opens a segment and checks its hash.
    ///
    /// # Errors
    /// The file cannot be read, or does not have the bytes that were written.
    pub fn open(path: &Path) -> Result<Segment> {
        Segment::of(map::open(path)?, path)
    }

    /// Opens a segment that this process or an earlier one has checked.
    ///
    /// # Errors
    /// The file cannot be read, or is no segment.
    pub fn reopen(path: &Path) -> Result<Segment> {
        Segment::laid_out(map::open(path)?, path)
    }
}

impl<B: Deref<Target = [u8]>> Segment<B> {
    /// A segment of these bytes; `path` is for messages.
    ///
    /// # Errors
    /// They are not those that were written.
    pub fn of(bytes: B, path: &Path) -> Result<Segment<B>> {
        let hash = bytes.get(HEAD_BYTES..).map(blake3::hash);
        if hash.is_none_or(|hash| hash.as_bytes() != &bytes[MAGIC.len()..HEAD_BYTES]) {
            return Err(Error::damaged(path, "its hash is another one"));
        }
        Segment::laid_out(bytes, path)
    }

    /// A segment of these bytes, whose hash is taken for granted.
    fn laid_out(bytes: B, path: &Path) -> Result<Segment<B>> {
        let starts = HEAD_BYTES + 8 * (SECTIONS + 1);
        if bytes.len() < starts || !bytes.starts_with(MAGIC) {
            return Err(Error::damaged(path, "it is not a segment of this version"));
        }
        let mut at = [0; SECTIONS + 1];
        for (index, at) in at.iter_mut().enumerate() {
            *at = usize::try_from(number(&bytes, HEAD_BYTES + 8 * index)).unwrap_or(usize::MAX);
        }
        if at[0] != starts || at[SECTIONS] != bytes.len() || !at.is_sorted() {
            return Err(Error::damaged(path, "its sections do not fit its length"));
        }
        let mut segment = Segment { bytes, at, chunks: 0, terms: 0 };
        segment.chunks = segment.section(CHUNKS).len() / RECORD;
        let records = segment.section(CHUNKS).chunks_exact(RECORD);
        segment.terms = records.map(|record| u64::from(small(record, 4))).sum();
        if segment.section(BANDS).len() != segment.chunks * 8 * BAND_COUNT {
            return Err(Error::damaged(path, "its sections do not fit each other"));
        }
        Ok(segment)
    }

    fn section(&self, section: usize) -> &[u8] {
        &self.bytes[self.at[section]..self.at[section + 1]]
    }

    /// Part `index` of a section, by its section of offsets.
    fn part(&self, (offsets, of): (usize, usize), index: usize) -> Option<&[u8]> {
        let offsets = self.section(offsets).get(8 * index..8 * index + 16)?;
        let [from, to] = [0, 8].map(|at| usize::try_from(number(offsets, at)).unwrap_or(usize::MAX));
        self.section(of).get(from..to)
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Number of terms of all chunks.
    pub fn terms(&self) -> u64 {
        self.terms
    }

    /// Number of terms of a chunk.
    pub fn terms_of(&self, chunk: usize) -> u32 {
        self.section(CHUNKS).get(RECORD * chunk + 4..).map_or(0, |record| small(record, 0))
    }

    /// The document of a chunk.
    pub fn document_of(&self, chunk: usize) -> usize {
        self.section(CHUNKS).get(RECORD * chunk..).map_or(0, |record| small(record, 0) as usize)
    }

    /// Facts of its files.
    pub fn files(&self) -> Option<Vec<FileFacts>> {
        serde_json::from_slice(self.section(FILES)).ok()
    }

    /// Facts of a document.
    pub fn document(&self, document: usize) -> Option<DocumentFacts> {
        serde_json::from_slice(self.part((DOCUMENT_AT, DOCUMENTS), document)?).ok()
    }

    /// A chunk.
    pub fn chunk(&self, chunk: usize) -> Option<StoredChunk<'_>> {
        let record = self.section(CHUNKS).get(RECORD * chunk..RECORD * (chunk + 1))?;
        let text = std::str::from_utf8(self.part((TEXT_AT, TEXTS), chunk)?).ok()?;
        let (headings, text) = text.split_at_checked(small(record, 36) as usize)?;
        let headings = headings.split(HEADING_END).filter(|it| !it.is_empty()).map(str::to_string).collect();
        Some(StoredChunk {
            document: small(record, 0),
            text,
            headings,
            bytes: [number(record, 8), number(record, 16)],
            lines: [small(record, 24), small(record, 28)],
            page: Some(small(record, 32)).filter(|page| *page > 0),
        })
    }

    /// The keys of a chunk's bands.
    pub fn bands(&self, chunk: usize) -> Bands {
        let all = &self.section(BANDS)[8 * BAND_COUNT * chunk..];
        std::array::from_fn(|band| number(all, 8 * band))
    }

    /// Chunks with a term, with its count in each; `None` if no chunk has it.
    pub fn postings(&self, term: &str) -> Option<PostingsOf<'_>> {
        let count = (self.section(TERM_AT).len() / 8).saturating_sub(1);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low.midpoint(high);
            match self.part((TERM_AT, TERMS), middle)?.cmp(term.as_bytes()) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => {
                    let mut rest = self.part((POSTINGS_AT, POSTINGS), middle)?;
                    let chunks = varint(&mut rest)?;
                    return Some(PostingsOf { chunks, rest, chunk: 0, limit: self.chunks as u32 });
                }
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }
}

/// Chunks with a term, in ascending order.
pub(crate) struct PostingsOf<'a> {
    /// Number of chunks.
    pub chunks: u32,
    rest: &'a [u8],
    chunk: u32,
    limit: u32,
}

impl Iterator for PostingsOf<'_> {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        let step = varint(&mut self.rest)?;
        let count = varint(&mut self.rest)?;
        self.chunk = self.chunk.checked_add(step).filter(|chunk| *chunk < self.limit)?;
        Some((self.chunk, count))
    }
}

fn varint(from: &mut &[u8]) -> Option<u32> {
    let mut number = 0u32;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The number at a place; 0 beyond the end.
fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn small(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}
