//! Writing a store. No file is visible under its final name before it is complete.

use super::header::{docs_header, docs_record};
use super::{
    Column, ColumnWriter, DocMeta, Header, IdType, MAGIC, VERSION, file, fingerprint, format_error, publish,
    write_whole,
};
use crate::error::{Error, OrIo, Result};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Appends documents to a new store. Dropping it without [`StoreWriter::finish`] removes the unfinished files.
#[derive(Debug)]
pub struct StoreWriter {
    prefix: PathBuf,
    header: Header,
    bin: BufWriter<File>,
    docs: BufWriter<File>,
    /// Token count of each document, which is all that the index needs.
    lengths: Vec<i32>,
    /// Created with the first document that has weights.
    weights: Option<ColumnWriter>,
    /// Present if the header declares values.
    values: Option<ColumnWriter>,
    finished: bool,
}

impl StoreWriter {
    /// Starts a store at `PREFIX.{bin,idx,json,docs}`, creating missing folders.
    ///
    /// # Errors
    /// The files cannot be created.
    pub fn create(prefix: impl AsRef<Path>, header: Header) -> Result<Self> {
        let prefix = prefix.as_ref().to_owned();
        if let Some(folder) = prefix.parent() {
            std::fs::create_dir_all(folder).or_io("create the folder", folder)?;
        }
        let header = Header { dtype: IdType::for_vocabulary(header.vocab_size), ..header };
        let bin = create(&file(&prefix, ".bin.tmp"))?;
        let mut docs = create(&file(&prefix, ".docs.tmp"))?;
        docs.write_all(&docs_header(0)).or_io("write", &file(&prefix, ".docs.tmp"))?;
        let values = match header.values {
            0 => None,
            _ => Some(ColumnWriter::create(&prefix, Column::Values, [0; 32])?),
        };
        let lengths = Vec::new();
        Ok(Self { prefix, header, bin, docs, lengths, weights: None, values, finished: false })
    }

    /// Appends one document. Its last id should be the end-of-text id; none is added here.
    ///
    /// # Errors
    /// An id is outside the vocabulary, the document is empty or longer than 2^31 - 1 tokens (Megatron stores lengths
    /// as i32; split it), or the disk is full.
    pub fn push_document(&mut self, ids: &[u32], meta: DocMeta) -> Result<()> {
        let doc = self.lengths.len() as u64;
        let path = file(&self.prefix, ".bin.tmp");
        let offset = self.header.tokens * self.header.dtype.bytes() as u64;
        let length = match i32::try_from(ids.len()) {
            Ok(length) if length > 0 => length,
            _ => {
                let reason =
                    format!("document {doc} has {} tokens; 1 to 2147483647 can be stored", ids.len());
                return Err(format_error(&path, offset, "document length", reason));
            }
        };
        if let Some(at) = ids.iter().position(|&id| u64::from(id) >= self.header.vocab_size) {
            return Err(Error::IdOutsideVocabulary {
                path,
                offset: offset + (at * self.header.dtype.bytes()) as u64,
                doc,
                id: ids[at].into(),
                vocab_size: self.header.vocab_size,
            });
        }
        self.write_ids(ids).or_io("write", &path)?;
        let record = docs_record(&meta, ids.len() as u64);
        self.docs.write_all(&record).or_io("write", &file(&self.prefix, ".docs.tmp"))?;
        self.lengths.push(length);
        self.header.documents += 1;
        self.header.tokens += ids.len() as u64;
        self.header.text_bytes += meta.text_bytes;
        Ok(())
    }

    /// Like [`StoreWriter::push_document`], with the loss weight of each token; documents without weights get ones.
    ///
    /// # Errors
    /// Same as [`StoreWriter::push_document`]; or a weight is negative or not finite.
    ///
    /// # Panics
    /// If the number of weights differs from the number of ids.
    #[track_caller]
    pub fn push_weighted(&mut self, ids: &[u32], weights: &[f32], meta: DocMeta) -> Result<()> {
        assert_eq!(ids.len(), weights.len(), "weights of a document's tokens");
        let before = self.header.tokens;
        self.push_document(ids, meta)?;
        if self.weights.is_none() {
            self.weights = Some(ColumnWriter::create(&self.prefix, Column::Weight, [0; 32])?);
        }
        let Some(column) = &mut self.weights else { return Ok(()) };
        fill(column, before)?;
        column.push(weights)
    }

    /// Appends the [`Header::values`] values of the last document.
    ///
    /// # Errors
    /// A value is infinite, or the disk is full.
    ///
    /// # Panics
    /// If the number of values is wrong.
    #[track_caller]
    pub fn push_values(&mut self, values: &[f32]) -> Result<()> {
        assert_eq!(values.len(), self.header.values as usize, "values of a document");
        self.values.as_mut().map_or(Ok(()), |column| column.push(values))
    }

    /// Encodes a text, adds the header's end-of-text id and appends the document.
    ///
    /// # Errors
    /// Same as [`crate::Tokenizer::encode`] and [`StoreWriter::push_document`].
    pub fn push_text(&mut self, tokenizer: &crate::Tokenizer, text: &str, source: u32) -> Result<()> {
        let mut ids = tokenizer.encode(text)?;
        ids.extend(self.header.eos);
        if ids.is_empty() { Ok(()) } else { self.push_document(&ids, DocMeta::of_text(text, source)) }
    }

    /// Adds a source name and returns its index for [`DocMeta::source`].
    pub fn add_source(&mut self, name: impl Into<String>) -> u32 {
        self.header.sources.push(name.into());
        self.header.sources.len() as u32 - 1
    }

    /// Header so far, including counts.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Completes the files: flushes and renames them, the index last, since its presence implies a complete store.
    ///
    /// # Errors
    /// The disk is full or a file cannot be renamed; an existing store under these names is then unchanged or lacks
    /// its index.
    pub fn finish(mut self) -> Result<Header> {
        let name = |suffix| file(&self.prefix, suffix);
        let (bin_tmp, docs_tmp, idx) = (name(".bin.tmp"), name(".docs.tmp"), name(".idx"));
        flush(&mut self.bin, &bin_tmp)?;
        let end = self.docs.seek(SeekFrom::Start(0)).and_then(|_| {
            self.docs.write_all(&docs_header(self.header.documents))?;
            self.docs.seek(SeekFrom::End(0))
        });
        end.or_io("write", &docs_tmp)?;
        flush(&mut self.docs, &docs_tmp)?;
        // An older index must not describe the new tokens, not even between two renames.
        match std::fs::remove_file(&idx) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).or_io("remove", &idx)?,
            _ => {}
        }
        publish(&bin_tmp, &name(".bin"))?;
        publish(&docs_tmp, &name(".docs"))?;
        let json = serde_json::to_string_pretty(&self.header).map_err(|e| Error::Json {
            path: name(".json"),
            key: String::new(),
            reason: e.to_string(),
        })?;
        write_whole(&name(".json"), (json + "\n").as_bytes())?;
        let index = self.index();
        self.finish_columns(&index)?;
        write_whole(&idx, &index)?;
        self.finished = true;
        Ok(self.header.clone())
    }

    /// Publishes the columns, if any, and removes those of an older store of this name.
    fn finish_columns(&mut self, index: &[u8]) -> Result<()> {
        for column in Column::ALL {
            let path = file(&self.prefix, column.suffix());
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).or_io("remove", &path)?
                }
                _ => {}
            }
        }
        let (weights, values) = (self.weights.take(), self.values.take());
        if weights.is_none() && values.is_none() {
            return Ok(());
        }
        let path = file(&self.prefix, ".docs");
        let docs = std::fs::read(&path).or_io("read", &path)?;
        let name = fingerprint(index, &docs, self.header.tokenizer_hash.as_deref());
        if let Some(mut column) = weights {
            fill(&mut column, self.header.tokens)?;
            column.finish_for(self.header.tokens, &name)?;
        }
        let known = self.header.documents * u64::from(self.header.values);
        values.map_or(Ok(()), |column| column.finish_for(known, &name))
    }

    /// Bytes of `.idx`: 42 + 20 per document.
    fn index(&self) -> Vec<u8> {
        let count = self.lengths.len() as u64;
        let mut idx = Vec::with_capacity(42 + 20 * self.lengths.len());
        idx.extend(MAGIC);
        idx.extend(VERSION.to_le_bytes());
        idx.push(self.header.dtype.code());
        idx.extend(count.to_le_bytes());
        idx.extend((count + 1).to_le_bytes());
        idx.extend(self.lengths.iter().flat_map(|length| length.to_le_bytes()));
        let mut offset = 0i64;
        for &length in &self.lengths {
            idx.extend(offset.to_le_bytes());
            offset += i64::from(length) * self.header.dtype.bytes() as i64;
        }
        idx.extend((0..=count).flat_map(u64::to_le_bytes));
        idx
    }

    fn write_ids(&mut self, ids: &[u32]) -> std::io::Result<()> {
        match self.header.dtype {
            // Ids are below the vocabulary size that determined the type, so the narrowing is lossless.
            IdType::U16 => ids.iter().try_for_each(|&id| self.bin.write_all(&(id as u16).to_le_bytes())),
            _ => ids.iter().try_for_each(|&id| self.bin.write_all(&id.to_le_bytes())),
        }
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        if !self.finished {
            for suffix in [".bin.tmp", ".docs.tmp"] {
                // Already renamed or removed: nothing to clean up.
                let _ = std::fs::remove_file(file(&self.prefix, suffix));
            }
        }
    }
}

/// Fills the column up to `tokens` with the neutral weight.
fn fill(column: &mut ColumnWriter, tokens: u64) -> Result<()> {
    while column.count() < tokens {
        let some = (tokens - column.count()).min(1 << 16) as usize;
        column.push(&vec![Column::Weight.absent(); some])?;
    }
    Ok(())
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    Ok(BufWriter::with_capacity(1 << 20, File::create(path).or_io("create", path)?))
}

fn flush(out: &mut BufWriter<File>, path: &Path) -> Result<()> {
    out.flush().and_then(|()| out.get_ref().sync_all()).or_io("write", path)
}
