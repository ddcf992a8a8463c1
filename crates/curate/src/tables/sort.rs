//! Tables of numbers in ascending order, within a limit on memory: what does not fit is first divided by ranges of its keys.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};
use arrow_schema::SchemaRef;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rayon::slice::ParallelSliceMut;

use super::key_sorter::{KeySorter, VisitRow};
use super::ranges::{Keys, RangeFile, Ranges};
use crate::error::Error;

/// Rows read at once. Each is cut into as many pieces as there are ranges.
const BATCH_ROWS: usize = 1 << 16;
/// Files open at once.
const MOST_RANGES: u64 = 512;

/// Sorts in this process.
pub(super) struct KeySort {
    /// Bytes of rows that are sorted at once.
    fits: u64,
    threads: usize,
    spill: PathBuf,
}

impl KeySort {
    /// # Errors
    /// The folder `spill` cannot be made.
    pub fn new(memory_bytes: u64, threads: usize, spill: &Path) -> Result<KeySort, Error> {
        std::fs::create_dir_all(spill).map_err(|e| Error::write("create", spill, e))?;
        // The rest is for the batch that is read.
        Ok(KeySort { fits: (memory_bytes / 4 * 3).max(1), threads, spill: spill.to_owned() })
    }

    /// The rows of a folder with `N` columns, in order of all but the last.
    fn rows<const N: usize>(&self, folder: &Path, visit: &mut VisitRow<'_>) -> Result<(), Error> {
        let table = Table::open(folder)?;
        let Some(schema) = &table.schema else { return Ok(()) };
        if table.rows * row_bytes::<N>() <= self.fits {
            return self.in_memory::<N>(table.rows, table.batches(), visit);
        }
        let mut waiting =
            self.divide::<N>(&self.spill.join("keys"), table.rows, (schema, 0), Keys::ALL, table.batches())?;
        while let Some((range, column)) = waiting.pop() {
            let Some(keys) = range.keys else {
                range.remove()?;
                continue;
            };
            // Rows with the same key are in order by the next; with the same keys, in any.
            let column = if keys.width() > 1 { column } else { column + 1 };
            if range.rows * row_bytes::<N>() <= self.fits {
                self.in_memory::<N>(range.rows, range.read()?, visit)?;
            } else if column + 1 < N {
                let keys = if keys.width() > 1 { keys } else { Keys::ALL };
                let prefix = range.path.with_extension("");
                waiting.extend(self.divide::<N>(
                    &prefix,
                    range.rows,
                    (schema, column),
                    keys,
                    range.read()?,
                )?);
            } else {
                for batch in range.read()? {
                    each::<N>(&batch?, &mut |row| visit(&row))?;
                }
            }
            range.remove()?;
        }
        Ok(())
    }

    fn in_memory<const N: usize>(
        &self,
        rows: u64,
        batches: impl Iterator<Item = Result<RecordBatch, Error>>,
        visit: &mut VisitRow<'_>,
    ) -> Result<(), Error> {
        let mut all: Vec<[u64; N]> = Vec::with_capacity(rows as usize);
        for batch in batches {
            each::<N>(&batch?, &mut |row| {
                all.push(row);
                Ok(())
            })?;
        }
        if self.threads > 1 {
            all.par_sort_unstable()
        } else {
            all.sort_unstable()
        }
        all.iter().try_for_each(|row| visit(row))
    }

    /// Ranges of a column with about half of what fits each, the first one last, and that column.
    fn divide<const N: usize>(
        &self,
        prefix: &Path,
        rows: u64,
        (schema, column): (&SchemaRef, usize),
        keys: Keys,
        batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    ) -> Result<Vec<(RangeFile, usize)>, Error> {
        let count = (rows * row_bytes::<N>()).div_ceil((self.fits / 2).max(1)).clamp(2, MOST_RANGES);
        let ranges = Ranges::create(prefix, keys, count, schema)?;
        for batch in batches {
            let batch = batch?;
            ranges.scatter(&batch, numbers(&batch, column)?)?;
        }
        Ok(ranges.close()?.into_iter().rev().map(|range| (range, column)).collect())
    }
}

impl KeySorter for KeySort {
    fn sorted(&self, folder: &Path, names: &[&str], visit: &mut VisitRow<'_>) -> Result<(), Error> {
        match names.len() {
            2 => self.rows::<2>(folder, visit),
            _ => self.rows::<3>(folder, visit),
        }
    }
}

const fn row_bytes<const N: usize>() -> u64 {
    8 * N as u64
}

fn each<const N: usize>(
    batch: &RecordBatch,
    take: &mut dyn FnMut([u64; N]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut columns = [&[][..]; N];
    for (number, column) in columns.iter_mut().enumerate() {
        *column = numbers(batch, number)?;
    }
    (0..batch.num_rows()).try_for_each(|row| take(columns.map(|column| column[row])))
}

fn numbers(batch: &RecordBatch, column: usize) -> Result<&[u64], Error> {
    let values = batch.columns().get(column).and_then(|column| column.as_primitive_opt::<UInt64Type>());
    let values = values.filter(|values| values.null_count() == 0);
    values
        .map(|values| &values.values()[..])
        .ok_or_else(|| Error::Table { detail: "the columns of keys are not 64-bit numbers".to_owned() })
}

/// A folder of Parquet files.
struct Table {
    files: Vec<PathBuf>,
    rows: u64,
    schema: Option<SchemaRef>,
}

impl Table {
    fn open(folder: &Path) -> Result<Table, Error> {
        let bad = |e| Error::read(folder, e);
        let entries = std::fs::read_dir(folder).map_err(bad)?;
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(bad)?;
        files.sort();
        let (mut rows, mut schema) = (0, None);
        for file in &files {
            let opened = open(file)?;
            rows += u64::try_from(opened.metadata().file_metadata().num_rows()).unwrap_or(0);
            schema.get_or_insert_with(|| Arc::clone(opened.schema()));
        }
        Ok(Table { files, rows, schema })
    }

    fn batches(&self) -> impl Iterator<Item = Result<RecordBatch, Error>> {
        self.files.iter().flat_map(|file| {
            let read = |file: &Path| {
                let bad = |e: std::io::Error| Error::read(file, e);
                open(file)?.with_batch_size(BATCH_ROWS).build().map_err(|e| bad(e.into()))
            };
            let (batches, failed) = match read(file) {
                Ok(batches) => (Some(batches), None),
                Err(error) => (None, Some(Err(error))),
            };
            let bad = |e| Error::read(file, std::io::Error::other(e));
            batches.into_iter().flatten().map(move |batch| batch.map_err(bad)).chain(failed)
        })
    }
}

fn open(file: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>, Error> {
    let bad = |e| Error::read(file, e);
    let opened = File::open(file).map_err(bad)?;
    ParquetRecordBatchReaderBuilder::try_new(opened).map_err(|e| bad(e.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed helper is a failed test.

    use arrow_array::{ArrayRef, UInt64Array};
    use arrow_schema::{DataType, Field, Schema};
    use parquet::arrow::ArrowWriter;

    use super::*;

    const NAMES: [&str; 3] = ["key", "low", "document"];

    /// A folder with the rows in two files.
    fn folder<const N: usize>(rows: &[[u64; N]]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let fields = NAMES[3 - N..].iter().map(|name| Field::new(*name, DataType::UInt64, false));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        for (number, rows) in rows.chunks(rows.len().div_ceil(2)).enumerate() {
            let column = |index: usize| {
                Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row[index]))) as ArrayRef
            };
            let batch = RecordBatch::try_new(schema.clone(), (0..N).map(column).collect()).unwrap();
            let file = File::create(folder.path().join(format!("{number}.parquet"))).unwrap();
            let mut writer = ArrowWriter::try_new(file, schema.clone(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
        }
        folder
    }

    /// The rows by a sort within `memory_bytes`; whether it spilled shows in `spilled`.
    fn sorted<const N: usize>(rows: &[[u64; N]], memory_bytes: u64, threads: usize) -> (Vec<[u64; N]>, bool) {
        let (folder, spill) = (folder(rows), tempfile::tempdir().unwrap());
        let sort = KeySort::new(memory_bytes, threads, spill.path()).unwrap();
        let (mut all, mut spilled) = (Vec::new(), false);
        let files = || std::fs::read_dir(spill.path()).unwrap().count();
        sort.sorted(folder.path(), &NAMES[3 - N..], &mut |row| {
            spilled |= all.is_empty() && files() > 0;
            all.push(row.try_into().unwrap());
            Ok(())
        })
        .unwrap();
        assert_eq!(files(), 0, "files are left");
        (all, spilled)
    }

    #[test]
    fn sorts_that_spill_give_the_order_of_those_in_memory() {
        // Keys of hashes, and one key that a third of the rows have: more than fits.
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ n;
        let key = |n: u64| if n.is_multiple_of(3) { 7 << 40 } else { hash(n) };
        let narrow: Vec<[u64; 2]> = (0..6000).map(|n| [key(n), n]).collect();
        let wide: Vec<[u64; 3]> =
            (0..6000).map(|n| [key(n), if n % 2 == 0 { 5 } else { hash(n + 1) }, n]).collect();
        let keys_of = |rows: &[[u64; 2]]| rows.iter().map(|row| row[0]).collect::<Vec<_>>();
        let wide_keys_of = |rows: &[[u64; 3]]| rows.iter().map(|row| [row[0], row[1]]).collect::<Vec<_>>();
        for (memory, threads) in [(1 << 20, 1), (1 << 20, 3), (40 << 10, 2), (6 << 10, 1)] {
            let (mut found, spilled) = sorted(&narrow, memory, threads);
            assert_eq!(spilled, memory < 1 << 20);
            assert!(keys_of(&found).is_sorted());
            found.sort_unstable();
            let mut all = narrow.clone();
            all.sort_unstable();
            assert_eq!(found, all);

            let (mut found, _) = sorted(&wide, memory, threads);
            assert!(wide_keys_of(&found).is_sorted());
            found.sort_unstable();
            let mut all = wide.clone();
            all.sort_unstable();
            assert_eq!(found, all);
        }
    }
}
