//! A table in the order of a key: rows go to files by ranges of their keys, then each range is sorted in memory and
//! written as a part, several ranges at once.
//!
//! The ranges depend on the size of the table alone, and the order within one on the rows, so neither threads nor
//! memory show in the bytes. Every text is written and read once more than it would be in memory.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::{interleave_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use super::barrier::Job;
use super::batch::Batch;
use super::crew::{self, Lane, Limits};
use super::manifest::part_path;
use super::part::{PartReader, PartWriter};
use crate::error::Error;

/// Text of a range, about.
const RANGE_TEXT_BYTES: u64 = 128 << 20;
/// Files open at once. Larger tables have larger ranges.
const MOST_RANGES: u64 = 512;
/// A range in memory, its rows in the making and its part's writer, over its text.
const TIMES_TEXT: u64 = 3;

/// The key of an id.
pub type KeyOf<'a> = dyn Fn(&str) -> u64 + Sync + 'a;

impl Job<'_> {
    /// Bytes of memory that [`Job::write_ordered`] needs on one thread, about.
    pub fn ordered_needs(&self) -> u64 {
        TIMES_TEXT * self.text_bytes().div_ceil(ranges_of(self.text_bytes()))
    }

    /// Writes the table in the order of (`key` of the id, id, place in the table). The files of ranges lie in `work`,
    /// an empty folder.
    ///
    /// # Errors
    /// A part that cannot be read or written, or parts of different columns.
    pub fn write_ordered(&self, work: &Path, key: &KeyOf<'_>) -> Result<(), Error> {
        let Some(first) = self.parts.first() else { return Ok(()) };
        let ranges =
            Ranges::create(work, ranges_of(self.text_bytes()), PartReader::open(&first.path)?.schema())?;
        self.for_each(&|number, batch| ranges.scatter(number, batch, key))?;
        let (schema, files) = ranges.close()?;
        let largest = files.iter().map(|range| range.text_bytes).max().unwrap_or(0);
        let at_once = (self.env.memory_bytes / (TIMES_TEXT * largest).max(1)).max(1);
        let limits = self.env.limits();
        let threads = limits.threads.min(usize::try_from(at_once).unwrap_or(usize::MAX));
        let open = |part: usize| Sorted::open(self, part, &files[part].path, &schema, key);
        let work = |piece: Piece| {
            let batches: Vec<&RecordBatch> = piece.batches.iter().collect();
            let table = interleave_record_batch(&batches, &piece.places).map_err(|e| table_error(&e))?;
            Batch::new(table).map_err(|detail| Error::Table { detail })
        };
        crew::run(Limits { threads, ..limits }, files.len(), &open, &work)
    }
}

fn ranges_of(text_bytes: u64) -> u64 {
    text_bytes.div_ceil(RANGE_TEXT_BYTES).clamp(1, MOST_RANGES)
}

fn table_error(error: &ArrowError) -> Error {
    Error::Table { detail: error.to_string() }
}

/// One file for each range of keys, by rising key.
struct Ranges {
    schema: SchemaRef,
    files: Vec<Mutex<Range>>,
}

struct Range {
    path: PathBuf,
    writer: StreamWriter<BufWriter<File>>,
    text_bytes: u64,
}

/// A range whose file is closed.
struct Closed {
    path: PathBuf,
    text_bytes: u64,
}

impl Ranges {
    fn create(work: &Path, count: u64, table: SchemaRef) -> Result<Ranges, Error> {
        let place = Field::new("place", DataType::UInt64, false);
        let fields = table.fields().iter().cloned().chain([Arc::new(place)]);
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let range = |number: u64| {
            let path = work.join(format!("range-{number:03}.arrow"));
            let file = File::create(&path).map_err(|e| Error::write("create", &path, e))?;
            let writer = StreamWriter::try_new(BufWriter::new(file), &schema);
            let writer = writer.map_err(|e| Error::write("write", &path, std::io::Error::other(e)))?;
            Ok(Mutex::new(Range { path, writer, text_bytes: 0 }))
        };
        let files = (0..count).map(range).collect::<Result<_, Error>>()?;
        Ok(Ranges { schema, files })
    }

    /// Writes the rows of a batch, whose first has the place `first`, to the files of their ranges.
    fn scatter(&self, first: u64, batch: &Batch, key: &KeyOf<'_>) -> Result<(), Error> {
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.files.len()];
        for row in 0..batch.rows() {
            let range = (u128::from(key(batch.id(row))) * self.files.len() as u128) >> 64;
            rows[range as usize].push(row as u32);
        }
        for (range, rows) in self.files.iter().zip(rows).filter(|(_, rows)| !rows.is_empty()) {
            let places = UInt64Array::from_iter_values(rows.iter().map(|&row| first + u64::from(row)));
            let taken =
                take_record_batch(batch.table(), &UInt32Array::from(rows)).map_err(|e| table_error(&e))?;
            let columns = taken.columns().iter().cloned().chain([Arc::new(places) as ArrayRef]);
            let taken =
                RecordBatch::try_new(self.schema.clone(), columns.collect()).map_err(|e| table_error(&e))?;
            let text_bytes = Batch::new(taken.clone()).map_or(0, |batch| batch.text_bytes());
            let mut range = lock(range);
            range.text_bytes += text_bytes;
            let written = range.writer.write(&taken);
            written.map_err(|e| Error::write("write", &range.path, std::io::Error::other(e)))?;
        }
        Ok(())
    }

    fn close(self) -> Result<(SchemaRef, Vec<Closed>), Error> {
        let close = |range: Mutex<Range>| {
            let Range { path, mut writer, text_bytes } =
                range.into_inner().unwrap_or_else(PoisonError::into_inner);
            writer.finish().map_err(|e| Error::write("write", &path, std::io::Error::other(e)))?;
            Ok(Closed { path, text_bytes })
        };
        Ok((self.schema, self.files.into_iter().map(close).collect::<Result<_, Error>>()?))
    }
}

fn lock(range: &Mutex<Range>) -> MutexGuard<'_, Range> {
    range.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rows that make a batch of the part: (number in `batches`, row).
struct Piece {
    batches: Arc<Vec<RecordBatch>>,
    places: Vec<(usize, usize)>,
}

/// A range in memory, on its way to its part.
struct Sorted<'a> {
    job: &'a Job<'a>,
    part: usize,
    file: PathBuf,
    batches: Arc<Vec<RecordBatch>>,
    /// Rows in order, and the bytes of their texts.
    rows: std::vec::IntoIter<(usize, usize, usize)>,
    writer: PartWriter,
}

impl<'a> Sorted<'a> {
    fn open(
        job: &'a Job<'a>,
        part: usize,
        path: &Path,
        schema: &SchemaRef,
        key: &KeyOf<'_>,
    ) -> Result<Sorted<'a>, Error> {
        let bad = |e: ArrowError| Error::read(path, std::io::Error::other(e));
        let file = File::open(path).map_err(|e| Error::read(path, e))?;
        let places = schema.fields().len() - 1;
        let columns: Vec<usize> = (0..places).collect();
        let mut rows = Vec::new();
        let mut batches = Vec::new();
        for table in StreamReader::try_new(BufReader::with_capacity(1 << 20, file), None).map_err(bad)? {
            let table = table.map_err(bad)?;
            let numbers = table.column(places).as_primitive::<UInt64Type>().clone();
            let batch = Batch::new(table.project(&columns).map_err(bad)?);
            let batch = batch.map_err(|detail| Error::Table { detail })?;
            rows.extend(
                (0..batch.rows()).map(|row| (key(batch.id(row)), numbers.value(row), batches.len(), row)),
            );
            batches.push(batch);
        }
        let id = |batch: usize, row: usize| batches[batch].id(row);
        rows.sort_unstable_by(|a, b| (a.0, id(a.2, a.3), a.1).cmp(&(b.0, id(b.2, b.3), b.1)));
        let rows: Vec<_> =
            rows.into_iter().map(|(.., batch, row)| (batch, row, batches[batch].text(row).len())).collect();
        let table = Arc::new(Schema::new(schema.fields()[..places].to_vec()));
        let writer = PartWriter::create(&part_path(job.folder, part), table)?;
        let batches = Arc::new(batches.into_iter().map(Batch::into_table).collect());
        Ok(Sorted { job, part, file: path.to_owned(), batches, rows: rows.into_iter(), writer })
    }
}

impl Lane for Sorted<'_> {
    type Job = Piece;
    type Done = Batch;

    fn next(&mut self) -> Result<Option<Piece>, Error> {
        self.job.env.point("batch")?;
        let (mut places, mut bytes) = (Vec::new(), 0);
        while places.len() < Batch::MAX_ROWS && bytes < Batch::MAX_TEXT_BYTES {
            let Some((batch, row, length)) = self.rows.next() else { break };
            places.push((batch, row));
            bytes += length;
        }
        Ok((!places.is_empty()).then(|| Piece { batches: self.batches.clone(), places }))
    }

    fn accept(&mut self, batch: Batch) -> Result<(), Error> {
        self.writer.write(&batch)
    }

    fn finish(self) -> Result<(), Error> {
        self.job.publish(self.part, self.writer)?;
        std::fs::remove_file(&self.file).map_err(|e| Error::write("remove", &self.file, e))
    }
}
