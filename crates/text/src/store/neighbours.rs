//! Neighbours of a store's chunks: a column with the numbers of the most similar chunks of a store.
//!
//! Documents are cut into consecutive chunks of `tokens` tokens, numbered over all documents ([`Chunks`]). The column is a
//! file `PREFIX.neighbours` next to `.bin` and `.idx`, little endian:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `FTHMNEAR` |
//! | 8 | 8 | version, u64 = 1 |
//! | 16 | 8 | tokens of a chunk, u64 |
//! | 24 | 8 | k, neighbours of a chunk, u64 |
//! | 32 | 32 | [`Store::fingerprint`] of the store |
//! | 64 | 32 | that of the store with the neighbours; the same, or another |
//! | 96 | 32 | hash of what found them |
//! | 128 | 32 | BLAKE3 of the numbers |
//! | 160 | 4 k n | one i32 for each neighbour of each chunk, the most similar first; -1 fills up |

use std::ops::Range;
use std::path::Path;

use super::header::u64_at;
use super::reader::Store;
use super::{file, format_error, write_whole};
use crate::error::{OrIo, Result};

const MAGIC: &[u8; 8] = b"FTHMNEAR";
const VERSION: u64 = 1;
const HEADER_BYTES: usize = 160;
const SUFFIX: &str = ".neighbours";

/// Chunks of a store's documents, numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    tokens: usize,
    /// First chunk of each document, and the number of all chunks.
    starts: Vec<usize>,
}

/// Place of a chunk in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Its document.
    pub doc: usize,
    /// Its first token in the document.
    pub start: usize,
}

impl Chunks {
    /// Cuts each document into chunks of `tokens` tokens; the last of a document may be shorter.
    pub fn of(store: &Store, tokens: usize) -> Chunks {
        let mut starts = vec![0];
        for doc in 0..store.num_documents() {
            starts.push(starts[doc] + store.doc_len(doc).div_ceil(tokens));
        }
        Chunks { tokens, starts }
    }

    /// Number of chunks.
    pub fn count(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Chunks of a document.
    pub fn of_doc(&self, doc: usize) -> Range<usize> {
        self.starts[doc]..self.starts[doc + 1]
    }

    /// Place of a chunk.
    pub fn place(&self, chunk: usize) -> ChunkPlace {
        let doc = self.starts.partition_point(|start| *start <= chunk) - 1;
        ChunkPlace { doc, start: (chunk - self.starts[doc]) * self.tokens }
    }

    /// Ids of a chunk and of as much of its continuation as makes `most` tokens, without the end of the text.
    ///
    /// # Errors
    /// Those of [`Store::token_range`].
    pub fn text(&self, store: &Store, chunk: usize, most: usize) -> Result<Vec<u32>> {
        let ChunkPlace { doc, start } = self.place(chunk);
        let length = store.doc_len(doc);
        let mut ids = Vec::new();
        store.token_range(doc, start, most.min(length - start), &mut ids)?;
        let end = store.header().and_then(|header| header.eos);
        if start + ids.len() == length && ids.last().copied() == end {
            ids.pop();
        }
        Ok(ids)
    }
}

/// The column, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// Tokens of a chunk.
    pub tokens: usize,
    /// Neighbours of a chunk.
    pub k: usize,
    /// Hash of what found them.
    pub made_by: [u8; 32],
    /// Fingerprints of the store and of that with the neighbours.
    stores: [[u8; 32]; 2],
    numbers: Vec<i32>,
}

impl Neighbours {
    /// A column of a store, whose neighbours are chunks of `database`: `k` numbers for each chunk.
    ///
    /// # Panics
    /// If there are not `k` for each.
    #[track_caller]
    pub fn new(
        [store, database]: [&Store; 2],
        (tokens, k): (usize, usize),
        made_by: [u8; 32],
        numbers: Vec<i32>,
    ) -> Neighbours {
        assert_eq!(numbers.len(), k * Chunks::of(store, tokens).count(), "{k} neighbours of each chunk");
        Neighbours { tokens, k, made_by, stores: [store.fingerprint(), database.fingerprint()], numbers }
    }

    /// Neighbours of a chunk, the most similar first.
    pub fn of(&self, chunk: usize) -> impl Iterator<Item = usize> + '_ {
        self.numbers[chunk * self.k..][..self.k].iter().filter_map(|number| usize::try_from(*number).ok())
    }

    /// Writes the column next to its store.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, prefix: &Path) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.tokens as u64, self.k as u64] {
            bytes.extend(number.to_le_bytes());
        }
        let numbers: Vec<u8> = self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let [store, database] = self.stores;
        for hash in [store, database, self.made_by, *blake3::hash(&numbers).as_bytes()] {
            bytes.extend(hash);
        }
        bytes.extend(numbers);
        write_whole(&file(prefix, SUFFIX), &bytes)
    }

    /// Reads the column of a store, if it has one.
    ///
    /// # Errors
    /// A damaged file, or one of other stores or of another tokenizer.
    pub fn open([store, database]: [&Store; 2]) -> Result<Option<Neighbours>> {
        let path = file(store.prefix(), SUFFIX);
        if !path.is_file() {
            return Ok(None);
        }
        let bytes = std::fs::read(&path).or_io("read", &path)?;
        let bad =
            |offset: usize, field, reason: String| Err(format_error(&path, offset as u64, field, reason));
        if bytes.len() < HEADER_BYTES || &bytes[..8] != MAGIC || u64_at(&bytes, 8) != VERSION {
            return bad(0, "magic", format!("these are no neighbours of version {VERSION}"));
        }
        let hash = |at: usize| <[u8; 32]>::try_from(&bytes[at..at + 32]).unwrap_or_default();
        let stores = [store.fingerprint(), database.fingerprint()];
        for (at, own) in [(32, stores[0]), (64, stores[1])] {
            if hash(at) != own {
                let reason = "they are of other text or of another tokenizer; remove the file to have them found again";
                return bad(at, "fingerprint", reason.into());
            }
        }
        let [tokens, k] = [16, 24].map(|at| usize::try_from(u64_at(&bytes, at)).unwrap_or(usize::MAX));
        let counted = (1..=1 << 20).contains(&tokens).then(|| Chunks::of(store, tokens).count());
        let numbers = &bytes[HEADER_BYTES..];
        let expected = counted.and_then(|count| count.checked_mul(k)?.checked_mul(4));
        if expected != Some(numbers.len()) || *blake3::hash(numbers).as_bytes() != hash(128) {
            return bad(
                128,
                "numbers",
                format!("{} bytes that are not those that were written", numbers.len()),
            );
        }
        let numbers: Vec<i32> =
            numbers.as_chunks().0.iter().map(|number| i32::from_le_bytes(*number)).collect();
        let count = Chunks::of(database, tokens).count();
        if let Some(wrong) = numbers.iter().find(|number| !(-1..count as i64).contains(&i64::from(**number)))
        {
            return bad(HEADER_BYTES, "numbers", format!("{wrong} is none of the {count} chunks"));
        }
        Ok(Some(Neighbours { tokens, k, made_by: hash(96), stores, numbers }))
    }
}
