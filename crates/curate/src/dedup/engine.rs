//! Tables of (key, document) in Parquet files, and the pairs of documents that share a key, by a sort that spills to disk.
//!
//! A table is cut by partition (a band of the signature), one folder each. Equal keys come together by sorting within a
//! partition; a self-join would make the square of a group's size.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::error::Error;
use crate::tables::{KeySorter, TableEngine};

/// Rows collected before they are handed to a file, and rows of a row group: a partition's writer holds about 1.5 MiB.
const BATCH_ROWS: usize = 8192;
const GROUP_ROWS: usize = 1 << 16;

/// Bytes that a writer may hold for each partition.
pub(super) const WRITER_BYTES: u64 = (GROUP_ROWS as u64) * 24 + (BATCH_ROWS as u64) * 24;

/// Most bytes of a row on disk: keys as they are, document numbers as packed differences.
pub(super) const ROW_BYTES: u64 = 18;

/// Sorter of keys, within a limit on memory.
pub struct Engine {
    sorter: Box<dyn KeySorter>,
    memory_bytes: u64,
}

impl Engine {
    /// Sorts in this process may take `memory_bytes` and spill under `spill`; with more than one thread they run on those
    /// of the current rayon pool.
    ///
    /// # Errors
    /// Where the folder cannot be made.
    pub fn new(memory_bytes: u64, threads: usize, spill: &Path) -> Result<Engine, Error> {
        Engine::on(&TableEngine::Embedded, memory_bytes, threads, spill)
    }

    /// The same with sorts at `place`.
    ///
    /// # Errors
    /// Those of [`Engine::new`], and where the place cannot be reached.
    pub fn on(place: &TableEngine, memory_bytes: u64, threads: usize, spill: &Path) -> Result<Engine, Error> {
        Ok(Engine { sorter: place.key_sorter(memory_bytes, threads, spill)?, memory_bytes })
    }

    /// Memory that sorts may take.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Calls `pair(first, other)` for every row of `partition` whose key stands in an earlier row, `first` being the
    /// document met first with that key: which one, may differ from run to run, but not which documents are connected.
    /// Returns the number of rows.
    ///
    /// # Errors
    /// Where the table cannot be read, or the sort runs out of disk.
    pub(super) fn pairs(
        &self,
        table: &KeyTable,
        partition: usize,
        mut pair: impl FnMut(u64, u64),
    ) -> Result<u64, Error> {
        // Pairs that come twice connect what is connected already, so a sort can be repeated from its start.
        for _ in 1..self.sorter.attempts() {
            if let Ok(rows) = self.pairs_once(table, partition, &mut pair) {
                return Ok(rows);
            }
        }
        self.pairs_once(table, partition, &mut pair)
    }

    fn pairs_once(
        &self,
        table: &KeyTable,
        partition: usize,
        pair: &mut impl FnMut(u64, u64),
    ) -> Result<u64, Error> {
        let folder = table.partition(partition);
        let mut run = Run { key: (0, 0), first: None };
        let mut count = 0;
        let names = table.columns();
        let sorted = self.sorter.sorted(&folder, names, &mut |row| {
            count += 1;
            let key = (row[0], if names.len() == 3 { row[1] } else { 0 });
            run.feed(key, row[row.len() - 1], pair)
        });
        sorted.map_err(|e| Error::Engine { doing: "sort", path: folder.clone(), detail: e.to_string() })?;
        Ok(count)
    }
}

/// The rows with one key, as they pass.
struct Run {
    key: (u64, u64),
    first: Option<u64>,
}

impl Run {
    fn feed(&mut self, key: (u64, u64), document: u64, pair: &mut impl FnMut(u64, u64)) -> Result<(), Error> {
        match self.first {
            Some(first) if self.key == key => pair(first, document),
            // Runs that a place does not merge would hide pairs.
            Some(_) if self.key > key => {
                return Err(Error::Table { detail: "the rows are not in order".to_owned() });
            }
            _ => {
                self.key = key;
                self.first = Some(document);
            }
        }
        Ok(())
    }
}

/// A table of (key, document) rows in folders of Parquet files, one folder a partition.
pub struct KeyTable {
    folder: PathBuf,
    partitions: usize,
    /// Keys of 128 bits instead of 64.
    wide: bool,
}

impl KeyTable {
    /// A table in a folder of its own under `work`. No two tables of a process share a path: a cluster remembers the
    /// footers of files it has read.
    pub(super) fn new(work: &Path, partitions: usize, wide: bool) -> KeyTable {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        let table = TABLES.fetch_add(1, Ordering::Relaxed);
        KeyTable { folder: work.join(format!("keys-{}-{table}", std::process::id())), partitions, wide }
    }

    fn partition(&self, partition: usize) -> PathBuf {
        self.folder.join(format!("partition={partition:05}"))
    }

    fn columns(&self) -> &'static [&'static str] {
        if self.wide { &["key", "low", "document"] } else { &["key", "document"] }
    }

    fn schema(&self) -> SchemaRef {
        let names = self.columns().iter();
        Arc::new(Schema::new(
            names.map(|name| Field::new(*name, DataType::UInt64, false)).collect::<Vec<_>>(),
        ))
    }

    /// Starts the files of `part`, a share of the documents, in every partition's folder.
    ///
    /// # Errors
    /// Where a file cannot be made.
    pub(super) fn writer(&self, part: usize) -> Result<KeyWriter, Error> {
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .set_column_encoding("document".into(), Encoding::DELTA_BINARY_PACKED)
            .build();
        let files = (0..self.partitions).map(|partition| {
            let folder = self.partition(partition);
            std::fs::create_dir_all(&folder).map_err(|e| Error::write("create", &folder, e))?;
            let path = folder.join(format!("part-{part:05}.parquet"));
            let file = File::create(&path).map_err(|e| Error::write("create", &path, e))?;
            let writer = ArrowWriter::try_new(file, self.schema(), Some(properties.clone()))
                .map_err(|e| Error::write("write", &path, e.into()))?;
            Ok(PartFile { path, writer, keys: Vec::new(), lows: Vec::new(), documents: Vec::new() })
        });
        let files = files.collect::<Result<Vec<_>, Error>>()?;
        Ok(KeyWriter { files, schema: self.schema(), wide: self.wide })
    }

    /// Removes the folder, once all partitions are.
    pub(super) fn close(self) -> Result<(), Error> {
        std::fs::remove_dir(&self.folder).map_err(|e| Error::write("remove", &self.folder, e))
    }

    /// Removes a partition that is no longer needed.
    pub(super) fn remove(&self, partition: usize) -> Result<(), Error> {
        let folder = self.partition(partition);
        std::fs::remove_dir_all(&folder).map_err(|e| Error::write("remove", &folder, e))
    }
}

struct PartFile {
    path: PathBuf,
    writer: ArrowWriter<File>,
    keys: Vec<u64>,
    lows: Vec<u64>,
    documents: Vec<u64>,
}

/// Writes rows of a [`KeyTable`].
pub(super) struct KeyWriter {
    files: Vec<PartFile>,
    schema: SchemaRef,
    wide: bool,
}

impl KeyWriter {
    /// Adds a row; `low` is the lower half of a wide key.
    pub(super) fn push(&mut self, partition: usize, key: u64, low: u64, document: u64) -> Result<(), Error> {
        let file = &mut self.files[partition];
        file.keys.push(key);
        if self.wide {
            file.lows.push(low);
        }
        file.documents.push(document);
        if file.keys.len() >= BATCH_ROWS { file.flush(&self.schema) } else { Ok(()) }
    }

    /// Writes what is left and closes the files.
    pub(super) fn finish(self) -> Result<(), Error> {
        for mut file in self.files {
            file.flush(&self.schema)?;
            file.writer.close().map_err(|e| Error::write("write", &file.path, e.into()))?;
        }
        Ok(())
    }
}

impl PartFile {
    fn flush(&mut self, schema: &SchemaRef) -> Result<(), Error> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(std::mem::take(&mut self.keys)))];
        if schema.fields().len() == 3 {
            columns.push(Arc::new(UInt64Array::from(std::mem::take(&mut self.lows))));
        }
        columns.push(Arc::new(UInt64Array::from(std::mem::take(&mut self.documents))));
        let failed = |e: ParquetError| Error::write("write", &self.path, e.into());
        let batch = RecordBatch::try_new(schema.clone(), columns).map_err(|e| failed(e.into()))?;
        self.writer.write(&batch).map_err(failed)
    }
}
