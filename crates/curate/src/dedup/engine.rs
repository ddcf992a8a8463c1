//! Tables of (key, document) in Parquet files, and the pairs of documents that share a key, by a DataFusion sort that
//! spills to disk.
//!
//! A table is cut by partition (a band of the signature), one folder each. Equal keys come together by sorting within a
//! partition; a self-join would make the square of a group's size.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::DataFusionError;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Encoding;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::error::Error;
use crate::tables::{TableEngine, within};

/// Rows collected before they are handed to a file, and rows of a row group: a partition's writer holds about 1.5 MiB.
const BATCH_ROWS: usize = 8192;
const GROUP_ROWS: usize = 1 << 16;

/// Bytes that a writer may hold for each partition.
pub(super) const WRITER_BYTES: u64 = (GROUP_ROWS as u64) * 24 + (BATCH_ROWS as u64) * 24;

/// A sort of keys holds some batches of `BATCH_ROWS`, twice each; with less it finds no room to begin.
const PARTITION_BYTES: u64 = 4 << 20;

/// Most bytes of a row on disk: keys as they are, document numbers as packed differences.
pub(super) const ROW_BYTES: u64 = 18;

/// A DataFusion context with a limit on memory, and the threads it runs on.
pub struct Engine {
    context: SessionContext,
    runtime: tokio::runtime::Runtime,
    memory_bytes: u64,
    attempts: usize,
}

impl Engine {
    /// Sorts in this process may take `memory_bytes` and spill under `spill`; work runs on `threads` threads.
    ///
    /// # Errors
    /// Where the folder cannot be made or threads cannot be started.
    pub fn new(memory_bytes: u64, threads: usize, spill: &Path) -> Result<Engine, Error> {
        Engine::on(&TableEngine::Embedded, memory_bytes, threads, spill)
    }

    /// The same with sorts at `place`.
    ///
    /// # Errors
    /// As [`Engine::new`], and where the place cannot be reached.
    pub fn on(place: &TableEngine, memory_bytes: u64, threads: usize, spill: &Path) -> Result<Engine, Error> {
        std::fs::create_dir_all(spill).map_err(|e| Error::write("create", spill, e))?;
        let threads = threads.max(1);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            // For a cluster; sorts of this process need neither timers nor sockets.
            .enable_all()
            .build()
            .map_err(|e| Error::write("start the threads that sort under", spill, e))?;
        let environment = within(memory_bytes, spill).map_err(|e| engine_error("start", spill, &e))?;
        let partitions = threads.min((memory_bytes / PARTITION_BYTES) as usize).max(1);
        // A quarter of each sort's share stays free for merging what was spilled.
        let reserve = (memory_bytes as usize / (4 * partitions)).min(10 << 20);
        let config = SessionConfig::new()
            .with_target_partitions(partitions)
            .with_batch_size(BATCH_ROWS)
            .with_sort_spill_reservation_bytes(reserve);
        let context = place.context(config, environment)?;
        Ok(Engine { context, runtime, memory_bytes, attempts: place.attempts() })
    }

    /// What sorts may take.
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
        for _ in 1..self.attempts {
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
        let whole = std::path::absolute(&folder).map_err(|e| Error::read(&folder, e))?;
        // With a slash at its end it is a folder, whatever its name.
        let path = format!("{}/", whole.display());
        let mut run = Run { key: (0, 0), first: None };
        let (mut count, mut fed) = (0, Ok(()));
        let sorted = fathom_query::sorted(&self.runtime, &self.context, &path, table.keys(), &mut |batch| {
            count += batch.num_rows() as u64;
            fed = run.feed(&batch, table.wide, pair);
            fed.is_ok()
        });
        fed.map_err(|detail| Error::Engine {
            doing: "sort",
            path: folder.clone(),
            detail: detail.to_owned(),
        })?;
        sorted.map_err(|e| engine_error("sort", &folder, &e))?;
        Ok(count)
    }
}

fn engine_error(doing: &'static str, path: &Path, error: &DataFusionError) -> Error {
    Error::Engine { doing, path: path.to_path_buf(), detail: error.strip_backtrace() }
}

/// The rows with one key, as they pass.
struct Run {
    key: (u64, u64),
    first: Option<u64>,
}

impl Run {
    fn feed(
        &mut self,
        batch: &RecordBatch,
        wide: bool,
        pair: &mut impl FnMut(u64, u64),
    ) -> Result<(), &'static str> {
        let column = |i: usize| {
            let numbers = batch.column(i).as_any().downcast_ref::<UInt64Array>();
            numbers.map(|numbers| &numbers.values()[..]).ok_or("the columns are not 64-bit numbers")
        };
        let keys = column(0)?;
        let lows = if wide { column(1)? } else { keys };
        let documents = column(batch.num_columns() - 1)?;
        for ((&key, &low), &document) in keys.iter().zip(lows).zip(documents) {
            match self.first {
                Some(first) if self.key == (key, low) => pair(first, document),
                // Runs that a place does not merge would hide pairs.
                Some(_) if self.key > (key, low) => return Err("the rows are not in order"),
                _ => {
                    self.key = (key, low);
                    self.first = Some(document);
                }
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
    /// A table in a folder of its own under `work`. No two tables of a process share a path: the engine remembers the
    /// footers of files it has read.
    pub(super) fn new(work: &Path, partitions: usize, wide: bool) -> KeyTable {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        let table = TABLES.fetch_add(1, Ordering::Relaxed);
        KeyTable { folder: work.join(format!("keys-{}-{table}", std::process::id())), partitions, wide }
    }

    fn partition(&self, partition: usize) -> PathBuf {
        self.folder.join(format!("partition={partition:05}"))
    }

    fn keys(&self) -> &'static [&'static str] {
        if self.wide { &["key", "low"] } else { &["key"] }
    }

    fn schema(&self) -> SchemaRef {
        let names = self.keys().iter().chain(&["document"]);
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
        let failed =
            |e: datafusion::parquet::errors::ParquetError| Error::write("write", &self.path, e.into());
        let batch = RecordBatch::try_new(schema.clone(), columns).map_err(|e| failed(e.into()))?;
        self.writer.write(&batch).map_err(failed)
    }
}
