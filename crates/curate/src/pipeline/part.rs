//! A part: one Parquet file of a table, written under a temporary name and renamed when complete.
//!
//! A row group holds one or two batches, so that a reader's memory is bounded by bytes and not only by rows. The
//! bytes of a part are a function of its batches: no times, no machine names.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::batch::Batch;
use super::histogram::Histogram;
use super::verify::FileFacts;
use crate::durable::{create, remove, rename, temporary_of};
use crate::error::Error;

/// Summary of a finished part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFacts {
    /// Documents, one per row.
    pub documents: u64,
    /// UTF-8 bytes of their text.
    pub text_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// XXH3-128 of the file, in hexadecimal.
    pub hash: String,
}

impl PartFacts {
    /// Size and hash of the file.
    pub(crate) fn file(&self) -> FileFacts {
        FileFacts { bytes: self.file_bytes, hash: self.hash.clone() }
    }
}

/// Writes batches of one schema.
pub(crate) struct PartWriter {
    path: PathBuf,
    temporary: PathBuf,
    writer: ArrowWriter<HashingWriter>,
    facts: PartFacts,
    lengths: Histogram,
    group_bytes: u64,
    group_rows: usize,
}

impl PartWriter {
    /// Starts the part at `path` under a temporary name next to it.
    pub fn create(path: &Path, schema: SchemaRef) -> Result<PartWriter, Error> {
        let temporary = temporary_of(path);
        let file = create(&temporary)?;
        let writer = ArrowWriter::try_new(HashingWriter::new(file), schema, Some(properties()?))
            .map_err(|e| written(&temporary, e))?;
        let (facts, lengths) = (PartFacts::default(), Histogram::default());
        let path = path.to_owned();
        Ok(PartWriter { path, temporary, writer, facts, lengths, group_bytes: 0, group_rows: 0 })
    }

    /// Appends a batch.
    pub fn write(&mut self, batch: &Batch) -> Result<(), Error> {
        if batch.rows() == 0 {
            return Ok(());
        }
        let fail = |e| written(&self.temporary, e);
        self.writer.write(batch.table()).map_err(fail)?;
        self.facts.documents += batch.rows() as u64;
        self.facts.text_bytes += batch.text_bytes();
        (0..batch.rows()).for_each(|row| self.lengths.add(batch.text(row).len() as f64));
        self.group_bytes += batch.text_bytes();
        self.group_rows += batch.rows();
        if self.group_rows >= Batch::MAX_ROWS || self.group_bytes >= Batch::MAX_TEXT_BYTES as u64 {
            self.writer.flush().map_err(|e| written(&self.temporary, e))?;
            (self.group_bytes, self.group_rows) = (0, 0);
        }
        Ok(())
    }

    /// Removes the unfinished part.
    pub fn discard(self) -> Result<(), Error> {
        remove(&self.temporary)
    }

    /// Distribution of the document lengths so far, in bytes.
    pub fn lengths(&self) -> &Histogram {
        &self.lengths
    }

    /// Completes the file under its temporary name and flushes it to disk.
    pub fn close(self) -> Result<ClosedPart, Error> {
        let PartWriter { path, temporary, writer, mut facts, .. } = self;
        let mut out = writer.into_inner().map_err(|e| written(&temporary, e))?;
        let flushed = out.file.flush().and_then(|()| out.file.get_ref().sync_all());
        flushed.map_err(|e| Error::write("write", &temporary, e))?;
        facts.file_bytes = out.bytes;
        facts.hash = format!("{:032x}", out.hash.finish_128());
        Ok(ClosedPart { path, temporary, facts })
    }
}

/// A complete part still under its temporary name.
pub(crate) struct ClosedPart {
    path: PathBuf,
    temporary: PathBuf,
    facts: PartFacts,
}

impl ClosedPart {
    /// Renames the part to its final name.
    pub fn publish(self) -> Result<PartFacts, Error> {
        rename(&self.temporary, &self.path)?;
        Ok(self.facts)
    }
}

/// Reads the batches of a part in order.
pub(crate) struct PartReader {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    next_group: usize,
    group: Option<ParquetRecordBatchReader>,
}

impl PartReader {
    /// Opens a part and reads its footer.
    pub fn open(path: &Path) -> Result<PartReader, Error> {
        let file = File::open(path).map_err(|e| Error::read(path, e))?;
        let metadata = ArrowReaderMetadata::load(&file, Default::default()).map_err(|e| bad(path, e))?;
        Ok(PartReader { path: path.to_owned(), file, metadata, next_group: 0, group: None })
    }

    /// Columns of the part.
    pub fn schema(&self) -> SchemaRef {
        self.metadata.schema().clone()
    }

    /// Returns the next batch; `None` after the last.
    pub fn next(&mut self) -> Result<Option<Batch>, Error> {
        loop {
            if let Some(group) = &mut self.group {
                match group.next() {
                    Some(Ok(table)) => return self.batch(table).map(Some),
                    Some(Err(error)) => return Err(bad(&self.path, error)),
                    None => self.group = None,
                }
            }
            if self.next_group == self.metadata.metadata().num_row_groups() {
                return Ok(None);
            }
            let file = self.file.try_clone().map_err(|e| Error::read(&self.path, e))?;
            let group = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
                .with_row_groups(vec![self.next_group])
                .with_batch_size(Batch::MAX_ROWS)
                .build()
                .map_err(|e| bad(&self.path, e))?;
            self.next_group += 1;
            self.group = Some(group);
        }
    }

    fn batch(&self, table: RecordBatch) -> Result<Batch, Error> {
        Batch::new(table).map_err(|problem| bad(&self.path, problem))
    }
}

fn properties() -> Result<WriterProperties, Error> {
    let level = ZstdLevel::try_new(1).unwrap_or_default();
    let text = || ColumnPath::from("text");
    Ok(WriterProperties::builder()
        .set_created_by("fathom".to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        // Long texts rarely repeat, and their minimum and maximum are useless.
        .set_column_dictionary_enabled(text(), false)
        .set_column_statistics_enabled(text(), EnabledStatistics::None)
        .set_column_dictionary_enabled(ColumnPath::from("id"), false)
        .build())
}

fn written(path: &Path, error: ParquetError) -> Error {
    let source = match error {
        ParquetError::External(inner) => io::Error::other(inner.to_string()),
        error => io::Error::other(error.to_string()),
    };
    Error::write("write", path, source)
}

fn bad(path: &Path, detail: impl ToString) -> Error {
    Error::BadFile { path: path.to_owned(), kind: "Parquet", detail: detail.to_string() }
}

/// Writer that hashes the bytes written.
struct HashingWriter {
    file: BufWriter<File>,
    hash: XxHash3_128,
    bytes: u64,
}

impl HashingWriter {
    fn new(file: File) -> HashingWriter {
        HashingWriter { file: BufWriter::with_capacity(1 << 18, file), hash: XxHash3_128::new(), bytes: 0 }
    }
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all(bytes)?;
        self.hash.write(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
