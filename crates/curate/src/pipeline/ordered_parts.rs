//! External sort of a table by a key: rows are partitioned into files by key range, then each range is sorted in
//! memory and written as a part, several ranges in parallel. A range too large for memory is partitioned again, and
//! its pieces follow each other within its part.
//!
//! The ranges depend only on the size of the table, and the order within a range only on its rows, so neither threads
//! nor memory affect the bytes. Every text is written and read once more than by an in-memory sort.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::interleave::interleave_record_batch;

use super::barrier::Job;
use super::batch::Batch;
use super::crew::{self, Lane, Limits};
use super::manifest::part_path;
use super::part::{PartReader, PartWriter};
use crate::error::Error;
use crate::tables::ranges::{Keys, RangeFile, Ranges, table_error};

/// Approximate bytes of text per range. Small in this module's tests, so that a table has several.
const RANGE_TEXT_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 128 << 20 };
/// Limit of files open at once. Larger tables have larger ranges.
const MOST_RANGES: u64 = 512;
/// Peak memory of sorting a range, as a multiple of its size: the loaded range, the rows being assembled and the part
/// writer.
const TIMES_RANGE: u64 = 3;

/// Sort key of a document id.
pub type KeyOf<'a> = dyn Fn(&str) -> u64 + Sync + 'a;

impl Job<'_> {
    /// Approximate bytes of memory that [`Job::write_ordered`] needs on one thread.
    pub fn ordered_needs(&self) -> u64 {
        let range = self.text_bytes().div_ceil(ranges_of(self.text_bytes()));
        (TIMES_RANGE * range).min(self.env.memory_bytes)
    }

    /// Writes the table sorted by (`key` of the id, id, position in the table). Range files are created in `work`, an
    /// empty folder.
    ///
    /// # Errors
    /// A part cannot be read or written, or the parts have different columns.
    pub fn write_ordered(&self, work: &Path, key: &KeyOf<'_>) -> Result<(), Error> {
        let Some(first) = self.parts.first() else { return Ok(()) };
        let schema = with_places(&PartReader::open(&first.path)?.schema());
        let ranges = Ranges::create(&work.join("range"), Keys::ALL, ranges_of(self.text_bytes()), &schema)?;
        self.for_each(&|number, batch| {
            let keys: Vec<u64> = (0..batch.rows()).map(|row| key(batch.id(row))).collect();
            ranges.scatter(&placed(batch, number, &schema)?, &keys)
        })?;
        let files = ranges.close()?;
        let fits = (self.env.memory_bytes / TIMES_RANGE).max(1);
        let largest = files.iter().map(|range| range.bytes).max().unwrap_or(0);
        let most = if largest > fits { fits.min(2 * RANGE_TEXT_BYTES) } else { largest.max(1) };
        let limits = self.env.limits();
        let threads = limits.threads.min(usize::try_from(fits / most).unwrap_or(usize::MAX)).max(1);
        let sorter = Sorter { job: self, schema: &schema, key, most };
        let open = |part: usize| RangeWriter::open(&sorter, part, &files[part]);
        crew::run(Limits { threads, ..limits }, files.len(), &open, &|piece: Piece| piece.batch())
    }

    /// Writer of the same parts for rows that already arrive in key order.
    ///
    /// # Errors
    /// A part cannot be read.
    #[cfg(any(test, feature = "ballista"))]
    pub fn in_key_order<'a>(&'a self, key: &'a KeyOf<'a>) -> Result<Option<InKeyOrder<'a>>, Error> {
        let Some(first) = self.parts.first() else { return Ok(None) };
        let schema = PartReader::open(&first.path)?.schema();
        let writer = PartWriter::create(&part_path(self.folder, 0), schema.clone())?;
        let ranges = ranges_of(self.text_bytes());
        let (part, rows, length, bytes) = (0, Vec::new(), 0, 0);
        Ok(Some(InKeyOrder { job: self, key, schema, ranges, part, writer, rows, length, bytes }))
    }
}

fn ranges_of(text_bytes: u64) -> u64 {
    text_bytes.div_ceil(RANGE_TEXT_BYTES).clamp(1, MOST_RANGES)
}

/// The columns of a table, and behind them the place of a row in it.
fn with_places(table: &Schema) -> SchemaRef {
    let place = Field::new("place", DataType::UInt64, false);
    let fields = table.fields().iter().cloned().chain([Arc::new(place)]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The rows of a batch with their places, the first of which is `first`.
fn placed(batch: &Batch, first: u64, schema: &SchemaRef) -> Result<RecordBatch, Error> {
    let places = UInt64Array::from_iter_values(first..first + batch.rows() as u64);
    let columns = batch.table().columns().iter().cloned().chain([Arc::new(places) as ArrayRef]);
    RecordBatch::try_new(schema.clone(), columns.collect()).map_err(|e| table_error(&e))
}

/// Returns true if a batch of a part has reached its row or text limit.
fn full(rows: usize, text_bytes: usize) -> bool {
    rows >= Batch::MAX_ROWS || text_bytes >= Batch::MAX_TEXT_BYTES
}

/// Shared parameters of sorting all ranges.
struct Sorter<'a> {
    job: &'a Job<'a>,
    /// Columns of the table, followed by the position.
    schema: &'a SchemaRef,
    key: &'a KeyOf<'a>,
    /// Bytes of the largest range that is sorted in memory.
    most: u64,
}

/// Rows in memory, in sorted order.
#[derive(Default)]
struct SortedRows {
    batches: Arc<Vec<RecordBatch>>,
    /// (index into `batches`, row, bytes of its text) of the rows still to be written.
    rows: std::vec::IntoIter<(usize, usize, usize)>,
}

impl Sorter<'_> {
    /// Loads the next of `waiting` that has rows, partitioning it first if it is too large. False when there is none.
    fn load(&self, waiting: &mut Vec<RangeFile>, loaded: &mut SortedRows) -> Result<bool, Error> {
        // Free the previous range first.
        *loaded = SortedRows::default();
        while let Some(range) = waiting.pop() {
            let Some(keys) = range.keys else {
                range.remove()?;
                continue;
            };
            if range.bytes > self.most && keys.width() > 1 {
                let count = range.bytes.div_ceil((self.most / 2).max(1)).clamp(2, MOST_RANGES);
                let ranges = Ranges::create(&range.path.with_extension(""), keys, count, self.schema)?;
                for table in range.read()? {
                    self.job.env.point("batch")?;
                    let table = table?;
                    ranges.scatter(&table, &self.keys(&table)?)?;
                }
                range.remove()?;
                waiting.extend(ranges.close()?.into_iter().rev());
                continue;
            }
            *loaded = self.sorted(&range)?;
            range.remove()?;
            return Ok(true);
        }
        Ok(false)
    }

    fn keys(&self, table: &RecordBatch) -> Result<Vec<u64>, Error> {
        let batch = Batch::new(table.clone()).map_err(|detail| Error::Table { detail })?;
        Ok((0..batch.rows()).map(|row| (self.key)(batch.id(row))).collect())
    }

    fn sorted(&self, range: &RangeFile) -> Result<SortedRows, Error> {
        let places = self.schema.fields().len() - 1;
        let columns: Vec<usize> = (0..places).collect();
        let (mut rows, mut batches) = (Vec::new(), Vec::new());
        let (mut few, mut number, mut bytes) = (Vec::new(), 0, 0);
        let mut tables = range.read()?;
        loop {
            let table = tables.next().transpose()?;
            let last = table.is_none();
            if let Some(table) = table {
                number += table.num_rows();
                bytes += Batch::new(table.clone()).map_or(0, |batch| batch.text_bytes() as usize);
                few.push(table);
            }
            // Many partitions leave a row or two at a time, each with the overhead of a batch.
            if few.is_empty() || (!last && !full(number, bytes)) {
                if last { break } else { continue }
            }
            let table = concat_batches(self.schema, &few).map_err(|e| table_error(&e))?;
            (number, bytes) = (0, 0);
            few.clear();
            let numbers = table.column(places).as_primitive::<UInt64Type>().clone();
            let batch = Batch::new(table.project(&columns).map_err(|e| table_error(&e))?);
            let batch = batch.map_err(|detail| Error::Table { detail })?;
            let row = |row| ((self.key)(batch.id(row)), numbers.value(row), batches.len(), row);
            rows.extend((0..batch.rows()).map(row));
            batches.push(batch);
        }
        let id = |batch: usize, row: usize| batches[batch].id(row);
        rows.sort_unstable_by(|a, b| (a.0, id(a.2, a.3), a.1).cmp(&(b.0, id(b.2, b.3), b.1)));
        let row = |(_, _, batch, row): (u64, u64, usize, usize)| (batch, row, batches[batch].text(row).len());
        let rows: Vec<_> = rows.into_iter().map(row).collect();
        let batches = Arc::new(batches.into_iter().map(Batch::into_table).collect());
        Ok(SortedRows { batches, rows: rows.into_iter() })
    }
}

/// Index of a table among several, and of a row in it.
type Place = (usize, usize);

/// Rows that form a batch of the part, from consecutive loaded ranges.
#[derive(Default)]
struct Piece {
    from: Vec<(Arc<Vec<RecordBatch>>, Vec<Place>)>,
    rows: usize,
    bytes: usize,
}

impl Piece {
    fn push(&mut self, batches: &Arc<Vec<RecordBatch>>, (batch, row, length): (usize, usize, usize)) {
        match self.from.last_mut().filter(|(last, _)| Arc::ptr_eq(last, batches)) {
            Some((_, places)) => places.push((batch, row)),
            None => self.from.push((batches.clone(), vec![(batch, row)])),
        }
        self.rows += 1;
        self.bytes += length;
    }

    fn batch(self) -> Result<Batch, Error> {
        let mut tables = Vec::with_capacity(self.from.len());
        for (batches, places) in &self.from {
            let batches: Vec<&RecordBatch> = batches.iter().collect();
            tables.push(interleave_record_batch(&batches, places).map_err(|e| table_error(&e))?);
        }
        let table = match &tables[..] {
            [] => return Err(Error::Table { detail: "a batch without rows".to_owned() }),
            [table] => table.clone(),
            [first, ..] => concat_batches(&first.schema(), &tables).map_err(|e| table_error(&e))?,
        };
        Batch::new(table).map_err(|detail| Error::Table { detail })
    }
}

/// A range being written to its part.
struct RangeWriter<'a> {
    sorter: &'a Sorter<'a>,
    part: usize,
    /// Pieces of the range still to be read, the next one last.
    waiting: Vec<RangeFile>,
    loaded: SortedRows,
    writer: PartWriter,
}

impl<'a> RangeWriter<'a> {
    fn open(sorter: &'a Sorter<'a>, part: usize, range: &RangeFile) -> Result<RangeWriter<'a>, Error> {
        let fields = sorter.schema.fields();
        let table = Arc::new(Schema::new(fields[..fields.len() - 1].to_vec()));
        let writer = PartWriter::create(&part_path(sorter.job.folder, part), table)?;
        Ok(RangeWriter { sorter, part, waiting: vec![range.clone()], loaded: SortedRows::default(), writer })
    }
}

impl Lane for RangeWriter<'_> {
    type Job = Piece;
    type Output = Batch;

    fn next(&mut self) -> Result<Option<Piece>, Error> {
        self.sorter.job.env.point("batch")?;
        let mut piece = Piece::default();
        while !full(piece.rows, piece.bytes) {
            match self.loaded.rows.next() {
                Some(row) => piece.push(&self.loaded.batches, row),
                None if self.sorter.load(&mut self.waiting, &mut self.loaded)? => {}
                None => break,
            }
        }
        Ok((piece.rows > 0).then_some(piece))
    }

    fn bytes(piece: &Piece) -> u64 {
        piece.bytes as u64
    }

    fn accept(&mut self, batch: Batch) -> Result<(), Error> {
        self.writer.write(&batch)
    }

    fn finish(self) -> Result<(), Error> {
        self.sorter.job.publish(self.part, self.writer)
    }
}

/// Accepts rows in key order, with the same part and batch boundaries as [`Job::write_ordered`].
#[cfg(any(test, feature = "ballista"))]
pub struct InKeyOrder<'a> {
    job: &'a Job<'a>,
    key: &'a KeyOf<'a>,
    schema: SchemaRef,
    ranges: u64,
    part: usize,
    writer: PartWriter,
    /// Rows of the batch being assembled, their number, and the bytes of their texts.
    rows: Vec<RecordBatch>,
    length: usize,
    bytes: usize,
}

#[cfg(any(test, feature = "ballista"))]
impl InKeyOrder<'_> {
    /// Appends rows.
    ///
    /// # Errors
    /// The disk cannot be written.
    pub fn push(&mut self, batch: &Batch) -> Result<(), Error> {
        for row in 0..batch.rows() {
            let part = Keys::ALL.division((self.key)(batch.id(row)), self.ranges);
            while self.part < part {
                self.next_part()?;
            }
            self.rows.push(batch.table().slice(row, 1));
            self.length += 1;
            self.bytes += batch.text(row).len();
            if full(self.length, self.bytes) {
                self.write()?;
            }
        }
        Ok(())
    }

    /// Closes the last parts.
    ///
    /// # Errors
    /// The disk cannot be written.
    pub fn finish(mut self) -> Result<(), Error> {
        while self.part + 1 < self.ranges as usize {
            self.next_part()?;
        }
        self.write()?;
        self.job.publish(self.part, self.writer)
    }

    fn next_part(&mut self) -> Result<(), Error> {
        self.write()?;
        let path = part_path(self.job.folder, self.part + 1);
        let next = PartWriter::create(&path, self.schema.clone())?;
        self.job.publish(self.part, std::mem::replace(&mut self.writer, next))?;
        self.part += 1;
        Ok(())
    }

    fn write(&mut self) -> Result<(), Error> {
        (self.length, self.bytes) = (0, 0);
        if self.rows.is_empty() {
            return Ok(());
        }
        let table = concat_batches(&self.schema, &std::mem::take(&mut self.rows));
        let batch = Batch::new(table.map_err(|e| table_error(&e))?);
        self.writer.write(&batch.map_err(|detail| Error::Table { detail })?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed helper is a failed test.

    use arrow_array::StringArray;

    use super::super::env::{Env, RunOptions};
    use super::super::manifest::{TablePart, parts_of};
    use super::*;
    use crate::blend::shuffle_key;

    fn env(folder: &Path, memory_bytes: u64, threads: usize) -> Env {
        Env {
            threads,
            memory_bytes,
            batch_bytes: 16 << 10,
            spill: folder.to_owned(),
            seed: 0,
            options: RunOptions::default(),
            pool: Default::default(),
            hashes: Default::default(),
        }
    }

    /// A part with documents of different lengths, some of which share an id.
    fn table(folder: &Path, documents: usize) -> Vec<TablePart> {
        let path = part_path(folder, 0);
        let mut writer = PartWriter::create(&path, Batch::schema(&[])).unwrap();
        let numbers: Vec<usize> = (0..documents).collect();
        for numbers in numbers.chunks(100) {
            let column =
                |of: &dyn Fn(usize) -> String| StringArray::from_iter_values(numbers.iter().map(|n| of(*n)));
            let id = |n: usize| format!("doc-{}", if n % 50 == 1 { n - 1 } else { n });
            let text = |n: usize| format!("{n} {}", "x".repeat(n * 31 % 900));
            let batch = Batch::of(column(&id), column(&text), column(&|_| "a".to_owned()));
            writer.write(&batch).unwrap();
        }
        let facts = writer.close().unwrap().publish().unwrap();
        vec![TablePart { path, facts }]
    }

    fn files(folder: &Path) -> Vec<Vec<u8>> {
        let mut count = 0;
        let one = |number| std::fs::read(part_path(folder, number)).ok();
        let files = std::iter::from_fn(|| {
            count += 1;
            one(count - 1)
        });
        files.collect()
    }

    #[test]
    fn neither_memory_nor_threads_nor_the_engine_show_in_the_bytes() {
        let key = |id: &str| shuffle_key(7, id);
        let from = tempfile::tempdir().unwrap();
        let parts = table(from.path(), 3000);
        let mut wanted = None;
        for (memory, threads) in [(1 << 30, 1), (1 << 30, 3), (300 << 10, 2), (40 << 10, 3), (3 << 10, 1)] {
            let (out, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let env = env(work.path(), memory, threads);
            let job = Job::new(&parts, out.path(), "key", &env);
            job.write_ordered(work.path(), &key).unwrap();
            assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "files are left");
            let files = files(out.path());
            assert!(files.len() > 15, "{} parts", files.len());
            let (wanted, first) = wanted.get_or_insert((files.clone(), out));
            assert!(*wanted == files, "{memory} bytes on {threads} threads");
            let _ = first;
        }
        let (wanted, first) = wanted.unwrap();

        // The rows in order, with different batch boundaries.
        let again = tempfile::tempdir().unwrap();
        let env = env(again.path(), 1 << 30, 1);
        let job = Job::new(&parts, again.path(), "key", &env);
        let mut sorted = job.in_key_order(&key).unwrap().unwrap();
        for part in parts_of(first.path(), wanted.len()).unwrap() {
            let mut reader = PartReader::open(&part.path).unwrap();
            while let Some(batch) = reader.next().unwrap() {
                (0..batch.rows()).step_by(7).for_each(|row| {
                    sorted.push(&batch.slice(row, 7.min(batch.rows() - row))).unwrap();
                });
            }
        }
        sorted.finish().unwrap();
        assert!(files(again.path()) == wanted, "rows of an engine");
        let lengths = job.lengths.into_inner().unwrap();
        assert_eq!(lengths.total(), 3000);
    }
}
