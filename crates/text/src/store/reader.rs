//! Reading a store. The whole index is validated once, when it is opened; nothing is copied or allocated in
//! proportion to what a file claims.

use super::column::{Column, ColumnFile};
use super::header::{DocMeta, check_docs, content_hash, docs_at, u64_at};
use super::map::{Map, Tokens};
use super::{Header, IDX_HEADER_BYTES, IdType, MAGIC, VERSION, file, fingerprint, format_error};
use crate::error::{Error, OrIo, Result};
use crate::tokenizer::Tokenizer;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A token store opened for reading. Documents are numbered from 0; a document of several sequences is a single run
/// of tokens.
#[derive(Debug)]
pub struct Store {
    prefix: PathBuf,
    index: Map,
    tokens: Tokens,
    docs: Option<Map>,
    header: Option<Header>,
    columns: Vec<ColumnFile>,
    frame: Frame,
}

/// Layout of a validated index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    dtype: IdType,
    sequences: usize,
    documents: usize,
    tokens: u64,
}

impl Frame {
    fn length(&self, idx: &[u8], sequence: usize) -> u64 {
        let at = IDX_HEADER_BYTES as usize + 4 * sequence;
        let mut word = [0; 4];
        word.copy_from_slice(&idx[at..at + 4]);
        // A negative length becomes larger than any file and is rejected there.
        i64::from(i32::from_le_bytes(word)) as u64
    }

    fn offset_position(&self, sequence: usize) -> usize {
        IDX_HEADER_BYTES as usize + 4 * self.sequences + 8 * sequence
    }

    fn offset(&self, idx: &[u8], sequence: usize) -> u64 {
        u64_at(idx, self.offset_position(sequence))
    }

    fn bound_position(&self, doc: usize) -> usize {
        IDX_HEADER_BYTES as usize + 12 * self.sequences + 8 * doc
    }

    fn bound(&self, idx: &[u8], doc: usize) -> u64 {
        u64_at(idx, self.bound_position(doc))
    }

    /// Byte range of a document in `.bin`.
    fn bytes_of(&self, idx: &[u8], doc: usize) -> Range<usize> {
        let (first, past) = (self.bound(idx, doc) as usize, self.bound(idx, doc + 1) as usize);
        if first == past {
            return 0..0;
        }
        let start = self.offset(idx, first);
        let end = self.offset(idx, past - 1) + self.length(idx, past - 1) * self.dtype.bytes() as u64;
        start as usize..end as usize
    }
}

/// Validates the bytes of an `.idx` file against the size of its `.bin` file.
pub(crate) fn check_index(idx: &[u8], bin_bytes: u64, path: &Path) -> Result<Frame> {
    let bad = |offset: usize, field, reason: String| Err(format_error(path, offset as u64, field, reason));
    if idx.len() < IDX_HEADER_BYTES as usize {
        return bad(
            0,
            "header",
            format!("{} bytes are too few; the header has {IDX_HEADER_BYTES}", idx.len()),
        );
    }
    if &idx[..9] != MAGIC {
        return bad(0, "magic", "not MMIDIDX: this is no Megatron index".into());
    }
    let version = u64_at(idx, 9);
    if version != VERSION {
        return bad(9, "version", format!("{version}; this program reads {VERSION}"));
    }
    let Some(dtype) = IdType::from_code(idx[17]) else {
        return bad(
            17,
            "dtype",
            format!("code {}; token ids are u8 (1), i32 (4), i64 (5) or u16 (8)", idx[17]),
        );
    };
    let (sequences, bounds) = (u64_at(idx, 18), u64_at(idx, 26));
    let plain = u128::from(IDX_HEADER_BYTES) + 12 * u128::from(sequences) + 8 * u128::from(bounds);
    let size = idx.len() as u128;
    if size != plain && size != plain + u128::from(sequences) {
        let reason = format!(
            "{sequences} sequences and {bounds} document bounds need {plain} bytes, the file has {size}; \
             it is truncated or not an index"
        );
        return bad(18, "counts", reason);
    }
    if bounds == 0 {
        return bad(26, "document count", "0 bounds; even an empty store has one".into());
    }
    // Both counts fit the file's size, so they fit usize, and every offset below is inside `idx`.
    let mut frame = Frame { dtype, sequences: sequences as usize, documents: bounds as usize - 1, tokens: 0 };
    check_sequences(&mut frame, idx, bin_bytes, path)?;
    check_documents(&frame, idx, path)?;
    Ok(frame)
}

fn check_sequences(frame: &mut Frame, idx: &[u8], bin_bytes: u64, path: &Path) -> Result<()> {
    let mut end = 0u64;
    for sequence in 0..frame.sequences {
        let (offset, length) = (frame.offset(idx, sequence), frame.length(idx, sequence));
        let at = frame.offset_position(sequence) as u64;
        if length > i32::MAX as u64 {
            let at = IDX_HEADER_BYTES + 4 * sequence as u64;
            let reason = format!("sequence {sequence} has the negative length {}", length as i64);
            return Err(format_error(path, at, "sequence length", reason));
        }
        if offset < end {
            let reason =
                format!("sequence {sequence} starts at byte {}, inside its predecessor", offset as i64);
            return Err(format_error(path, at, "sequence offset", reason));
        }
        let past = offset.checked_add(length * frame.dtype.bytes() as u64);
        end = match past.filter(|&past| past <= bin_bytes) {
            Some(past) => past,
            None => {
                let reason = format!(
                    "sequence {sequence} has {length} tokens from byte {}, but the .bin file ends at {bin_bytes}",
                    offset as i64
                );
                return Err(format_error(path, at, "sequence offset", reason));
            }
        };
        frame.tokens += length;
    }
    let covered = frame.tokens * frame.dtype.bytes() as u64;
    if covered < bin_bytes {
        let reason = format!(
            "the sequences have {covered} bytes of the {bin_bytes} in the .bin file, and the rest would never be read: the index is \
             of another store, or was cut off"
        );
        return Err(format_error(path, 18, "counts", reason));
    }
    Ok(())
}

fn check_documents(frame: &Frame, idx: &[u8], path: &Path) -> Result<()> {
    let bad = |doc: usize, reason: String| {
        Err(format_error(path, frame.bound_position(doc) as u64, "document bound", reason))
    };
    let last = frame.bound(idx, frame.documents);
    if frame.bound(idx, 0) != 0 || last != frame.sequences as u64 {
        let reason = format!("bounds must run from 0 to {}, the last is {}", frame.sequences, last as i64);
        return bad(frame.documents, reason);
    }
    for doc in 0..frame.documents {
        let (first, past) = (frame.bound(idx, doc), frame.bound(idx, doc + 1));
        if past < first || past > frame.sequences as u64 {
            return bad(doc + 1, format!("{} follows {first}; bounds never fall", past as i64));
        }
        for sequence in first as usize..(past as usize).saturating_sub(1) {
            let end = frame.offset(idx, sequence) + frame.length(idx, sequence) * frame.dtype.bytes() as u64;
            if end != frame.offset(idx, sequence + 1) {
                let reason =
                    format!("the sequences {sequence} and {} of one document are apart", sequence + 1);
                return bad(doc, reason);
            }
        }
    }
    Ok(())
}

impl Store {
    /// Opens `PREFIX.bin` and `PREFIX.idx`, and, if they exist, `PREFIX.json`, `PREFIX.docs` and the columns.
    ///
    /// # Errors
    /// A file is missing or violates the layout; the message names file, offset and field.
    pub fn open(prefix: impl AsRef<Path>) -> Result<Self> {
        let prefix = prefix.as_ref().to_owned();
        let idx_path = file(&prefix, ".idx");
        let tokens = Tokens::open(&file(&prefix, ".bin"))?;
        let index = Map::open(&idx_path)?;
        let frame = check_index(index.bytes(), tokens.bytes(), &idx_path)?;
        let header = optional(&file(&prefix, ".json"), |path| {
            Header::parse(&std::fs::read(path).or_io("read", path)?, path)
        })?;
        if let Some(header) = &header {
            check_header(header, &frame, &file(&prefix, ".json"))?;
        }
        let docs_path = file(&prefix, ".docs");
        let docs = optional(&docs_path, Map::open)?;
        let known = header.as_ref().map_or(0, |header| u64::from(header.values));
        let columns = Column::ALL.map(|column| match column {
            Column::Values => ColumnFile::open(column, &prefix, known * frame.documents as u64),
            _ => ColumnFile::open(column, &prefix, frame.tokens),
        });
        let columns = columns.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?;
        let store = Self { prefix, index, tokens, docs, header, columns, frame };
        if let Some(docs) = &store.docs {
            check_docs(docs.bytes(), frame.documents as u64, &docs_path)?;
            for doc in 0..frame.documents {
                let (_, tokens) = docs_at(docs.bytes(), doc);
                if tokens != store.doc_len(doc) as u64 {
                    let reason =
                        format!("document {doc}: {tokens}, but the index says {}", store.doc_len(doc));
                    return Err(format_error(&docs_path, 24 + 40 * doc as u64 + 24, "tokens", reason));
                }
            }
        }
        store.columns.iter().try_for_each(|column| column.check(&store.fingerprint()))?;
        Ok(store)
    }

    /// Path passed to [`Store::open`].
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Metadata of the store; `None` for stores of other tools.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Storage type of an id.
    pub fn dtype(&self) -> IdType {
        self.frame.dtype
    }

    /// Number of documents.
    pub fn num_documents(&self) -> usize {
        self.frame.documents
    }

    /// Number of tokens in all documents.
    pub fn num_tokens(&self) -> u64 {
        self.frame.tokens
    }

    /// Number of tokens in a document.
    pub fn doc_len(&self, doc: usize) -> usize {
        self.doc_bytes(doc).len() / self.frame.dtype.bytes()
    }

    /// Metadata of a document; `None` for stores of other tools.
    pub fn doc_meta(&self, doc: usize) -> Option<DocMeta> {
        assert!(doc < self.num_documents(), "document {doc} of {}", self.num_documents());
        self.docs.as_ref().map(|docs| docs_at(docs.bytes(), doc).0)
    }

    /// Content hash of the document: as recorded, otherwise computed from its stored ids.
    ///
    /// # Errors
    /// Same as [`Store::token_range`].
    pub fn doc_hash(&self, doc: usize) -> Result<u128> {
        self.check()?;
        match self.doc_meta(doc) {
            Some(meta) => Ok(meta.hash),
            None => Ok(content_hash(&self.read(self.doc_bytes(doc))?)),
        }
    }

    /// Rejects mappings of files that have become shorter, before they are accessed.
    fn check(&self) -> Result<()> {
        self.index.check(&file(&self.prefix, ".idx"))?;
        self.docs.as_ref().map_or(Ok(()), |docs| docs.check(&file(&self.prefix, ".docs")))
    }

    /// Reads bytes of the tokens.
    fn read(&self, range: Range<usize>) -> Result<Vec<u8>> {
        self.tokens.read(range, &file(&self.prefix, ".bin"))
    }

    /// Identifies the store's content without reading its tokens: BLAKE3 of the index, the document metadata and the
    /// tokenizer's hash.
    pub fn fingerprint(&self) -> [u8; 32] {
        let tokenizer = self.header.as_ref().and_then(|header| header.tokenizer_hash.as_deref());
        fingerprint(self.index.bytes(), self.docs.as_ref().map_or(&[][..], Map::bytes), tokenizer)
    }

    /// Hashes of its columns' values and origins.
    pub(crate) fn column_names(&self) -> impl Iterator<Item = &[u8]> {
        self.columns.iter().map(ColumnFile::name)
    }

    /// Returns true if the store has a column.
    pub fn has(&self, column: Column) -> bool {
        self.columns.iter().any(|file| file.column() == column)
    }

    /// Number of consecutive documents that stay together.
    pub fn group(&self) -> usize {
        self.header.as_ref().map_or(1, |header| header.group as usize)
    }

    /// Values per token in a column; 0 without the column.
    pub fn width(&self, column: Column) -> usize {
        let found = self.columns.iter().find(|file| file.column() == column);
        found.map_or(0, |file| file.width(self.frame.tokens))
    }

    /// Hash of a column's origin, such as a reference model; `None` without the column.
    pub fn made_by(&self, column: Column) -> Option<[u8; 32]> {
        self.columns.iter().find(|file| file.column() == column).map(ColumnFile::made_by)
    }

    /// Values of a document; empty if the store has none.
    ///
    /// # Errors
    /// The file cannot be read, or contains an invalid value.
    pub fn values(&self, doc: usize) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        if let Some(file) = self.columns.iter().find(|file| file.column() == Column::Values) {
            let width = self.header.as_ref().map_or(0, |header| header.values as usize);
            file.read(doc * width, width, &mut values)?;
        }
        Ok(values)
    }

    /// Appends a column's values of `len` tokens of a document, from token `start`, to `out`; appends nothing if the
    /// store does not have the column. Panics when the range leaves the document.
    ///
    /// # Errors
    /// The file cannot be read, or contains an invalid value.
    #[track_caller]
    pub fn column_range(
        &self,
        column: Column,
        doc: usize,
        range: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let Some(file) = self.columns.iter().find(|file| file.column() == column) else { return Ok(()) };
        self.check()?;
        let total = self.doc_len(doc);
        assert!(range.start <= range.end && range.end <= total, "{range:?} of document {doc}, {total} long");
        let first = self.doc_bytes(doc).start / self.frame.dtype.bytes();
        let width = file.width(self.frame.tokens);
        file.read((first + range.start) * width, range.len() * width, out)
    }

    /// All ids of a document.
    ///
    /// # Errors
    /// Same as [`Store::token_range`].
    pub fn doc(&self, doc: usize) -> Result<Vec<u32>> {
        self.check()?;
        let mut ids = Vec::new();
        self.token_range(doc, 0, self.doc_len(doc), &mut ids)?;
        Ok(ids)
    }

    /// Appends `len` ids of a document, from token `start`, to `out`. Panics when the range leaves the document.
    ///
    /// Ids are returned as stored; [`Store::check_ids`] checks them against a vocabulary.
    ///
    /// # Errors
    /// The file cannot be read, or was truncated after it was opened.
    #[track_caller]
    pub fn token_range(&self, doc: usize, start: usize, len: usize, out: &mut Vec<u32>) -> Result<()> {
        self.check()?;
        let total = self.doc_len(doc);
        assert!(
            start <= total && len <= total - start,
            "{len} tokens from {start} of document {doc}, {total} long"
        );
        let width = self.frame.dtype.bytes();
        let first = self.doc_bytes(doc).start + start * width;
        let bytes = self.read(first..first + len * width)?;
        match self.frame.dtype {
            IdType::U8 => out.extend(bytes.iter().map(|&id| u32::from(id))),
            IdType::U16 => {
                out.extend(bytes.as_chunks().0.iter().map(|&id| u32::from(u16::from_le_bytes(id))))
            }
            IdType::I32 => out.extend(bytes.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id))),
            // A value that does not fit is not a valid id; it remains recognizable as such.
            IdType::I64 => out.extend(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&id| u32::try_from(i64::from_le_bytes(id)).unwrap_or(u32::MAX)),
            ),
        }
        Ok(())
    }

    /// Checks that the store was made with this tokenizer, if it records one: tokenizers of the same size differ in
    /// what their ids mean.
    ///
    /// # Errors
    /// The store was made with another tokenizer, or the tokenizer cannot be written as JSON.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<()> {
        let Some(made_by) = self.header.as_ref().and_then(|header| header.tokenizer_hash.clone()) else {
            return Ok(());
        };
        let given = tokenizer.hash()?;
        if made_by == given {
            return Ok(());
        }
        Err(Error::OtherTokenizer { path: file(&self.prefix, ".json"), made_by, given })
    }

    /// Reads every token and checks that its id is below `vocab_size`.
    ///
    /// # Errors
    /// Describes the first id outside the vocabulary, with its document and byte offset.
    pub fn check_ids(&self, vocab_size: u64) -> Result<()> {
        const BLOCK: usize = 1 << 16;
        let mut ids = Vec::with_capacity(BLOCK);
        for doc in 0..self.num_documents() {
            self.check()?;
            let length = self.doc_len(doc);
            for start in (0..length).step_by(BLOCK) {
                ids.clear();
                self.token_range(doc, start, BLOCK.min(length - start), &mut ids)?;
                if let Some(at) = ids.iter().position(|&id| u64::from(id) >= vocab_size) {
                    let width = self.frame.dtype.bytes();
                    let id = match self.frame.dtype {
                        IdType::I32 => i64::from(ids[at] as i32),
                        _ => ids[at].into(),
                    };
                    return Err(Error::IdOutsideVocabulary {
                        path: file(&self.prefix, ".bin"),
                        offset: (self.doc_bytes(doc).start + (start + at) * width) as u64,
                        doc: doc as u64,
                        id,
                        vocab_size,
                    });
                }
            }
        }
        Ok(())
    }

    #[track_caller]
    fn doc_bytes(&self, doc: usize) -> Range<usize> {
        assert!(doc < self.num_documents(), "document {doc} of {}", self.num_documents());
        self.frame.bytes_of(self.index.bytes(), doc)
    }
}

/// Opens a file if it exists.
fn optional<T>(path: &Path, open: impl FnOnce(&Path) -> Result<T>) -> Result<Option<T>> {
    match path.try_exists() {
        Ok(true) => open(path).map(Some),
        Ok(false) => Ok(None),
        Err(error) => Err(error).or_io("look for", path),
    }
}

fn check_header(header: &Header, frame: &Frame, path: &Path) -> Result<()> {
    let bad = |key: &str, reason: String| Error::Json { path: path.to_owned(), key: key.into(), reason };
    if header.dtype != frame.dtype {
        return Err(bad("dtype", format!("{:?}, but the index says {:?}", header.dtype, frame.dtype)));
    }
    for (key, stated, counted) in
        [("documents", header.documents, frame.documents as u64), ("tokens", header.tokens, frame.tokens)]
    {
        if stated != counted {
            return Err(bad(
                key,
                format!("{stated}, but the index has {counted}; the files are of two stores"),
            ));
        }
    }
    Ok(())
}
