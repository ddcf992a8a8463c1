//! Files of unsorted rows partitioned by key range: the first phase of an external sort.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use arrow_schema::SchemaRef;
use arrow_select::take::take_record_batch;

use crate::error::Error;

/// Memory per row in addition to its columns: its key, and its positions before and after sorting.
const ROW_BYTES: u64 = 64;

/// Keys from `first` to `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub first: u64,
    pub last: u64,
}

impl Keys {
    pub const ALL: Keys = Keys { first: 0, last: u64::MAX };

    /// Number of keys.
    pub fn width(self) -> u128 {
        u128::from(self.last - self.first) + 1
    }

    /// Index of the equal-width division, out of `count`, that contains a key of this range. Monotonic in the key.
    pub fn division(self, key: u64, count: u64) -> usize {
        (u128::from(key - self.first) * u128::from(count) / self.width()) as usize
    }

    fn with(self, key: u64) -> Keys {
        Keys { first: self.first.min(key), last: self.last.max(key) }
    }
}

pub(crate) fn table_error(error: &ArrowError) -> Error {
    Error::Table { detail: error.to_string() }
}

/// One file per division of a key range, in ascending key order.
pub(crate) struct Ranges {
    keys: Keys,
    files: Vec<Mutex<Open>>,
}

struct Open {
    range: RangeFile,
    writer: StreamWriter<BufWriter<File>>,
}

/// A range whose file has been closed.
#[derive(Clone, Debug)]
pub(crate) struct RangeFile {
    pub path: PathBuf,
    /// How many rows it has.
    pub rows: u64,
    /// Bytes of its rows in memory.
    pub bytes: u64,
    /// Smallest and largest of its keys; `None` if it has no rows.
    pub keys: Option<Keys>,
}

impl Ranges {
    /// Creates at most `count` files, fewer if there are fewer keys; their names begin with `prefix`.
    pub fn create(prefix: &Path, keys: Keys, count: u64, schema: &SchemaRef) -> Result<Ranges, Error> {
        let count = u64::try_from(keys.width()).unwrap_or(u64::MAX).min(count);
        let open = |number: u64| {
            let mut name = prefix.as_os_str().to_owned();
            name.push(format!("-{number:03}.arrow"));
            let path = PathBuf::from(name);
            let file = File::create(&path).map_err(|e| Error::write("create", &path, e))?;
            let writer = StreamWriter::try_new(BufWriter::new(file), schema);
            let writer = writer.map_err(|e| Error::write("write", &path, std::io::Error::other(e)))?;
            Ok(Mutex::new(Open { range: RangeFile { path, rows: 0, bytes: 0, keys: None }, writer }))
        };
        let files = (0..count).map(open).collect::<Result<_, Error>>()?;
        Ok(Ranges { keys, files })
    }

    /// Writes rows with the given `keys` to the files of their divisions. Callable from any thread.
    pub fn scatter(&self, table: &RecordBatch, keys: &[u64]) -> Result<(), Error> {
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.files.len()];
        for (row, key) in keys.iter().enumerate() {
            rows[self.keys.division(*key, self.files.len() as u64)].push(row as u32);
        }
        for (open, rows) in self.files.iter().zip(rows).filter(|(_, rows)| !rows.is_empty()) {
            let own = rows.iter().map(|&row| keys[row as usize]);
            let own = own.fold(None, |all: Option<Keys>, key| {
                Some(all.unwrap_or(Keys { first: key, last: key }).with(key))
            });
            let taken = take_record_batch(table, &UInt32Array::from(rows)).map_err(|e| table_error(&e))?;
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            open.range.rows += taken.num_rows() as u64;
            open.range.bytes += bytes_of(&taken);
            open.range.keys = match (open.range.keys, own) {
                (Some(all), Some(own)) => Some(all.with(own.first).with(own.last)),
                (all, own) => all.or(own),
            };
            let written = open.writer.write(&taken);
            written.map_err(|e| Error::write("write", &open.range.path, std::io::Error::other(e)))?;
        }
        Ok(())
    }

    /// Closes the files; the ranges are in ascending key order.
    pub fn close(self) -> Result<Vec<RangeFile>, Error> {
        let close = |open: Mutex<Open>| {
            let Open { range, mut writer } = open.into_inner().unwrap_or_else(PoisonError::into_inner);
            writer.finish().map_err(|e| Error::write("write", &range.path, std::io::Error::other(e)))?;
            Ok(range)
        };
        self.files.into_iter().map(close).collect()
    }
}

impl RangeFile {
    /// Rows in the order they were written.
    pub fn read(&self) -> Result<impl Iterator<Item = Result<RecordBatch, Error>> + use<>, Error> {
        let path = self.path.clone();
        let file = File::open(&path).map_err(|e| Error::read(&path, e))?;
        let bad = move |e: ArrowError| Error::read(&path, std::io::Error::other(e));
        let reader = StreamReader::try_new(BufReader::with_capacity(1 << 20, file), None).map_err(&bad)?;
        Ok(reader.map(move |table| table.map_err(&bad)))
    }

    /// Removes its file.
    pub fn remove(&self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(|e| Error::write("remove", &self.path, e))
    }
}

fn bytes_of(table: &RecordBatch) -> u64 {
    let column = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(0) as u64;
    table.columns().iter().map(column).sum::<u64>() + ROW_BYTES * table.num_rows() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_rise_with_keys_and_none_holds_all() {
        for (first, last) in [(0, u64::MAX), (5, 6), (7, 1000), (u64::MAX - 3, u64::MAX)] {
            let keys = Keys { first, last };
            for count in [2u64, 3, 512] {
                let count = u64::try_from(keys.width()).unwrap_or(u64::MAX).min(count);
                assert_eq!(keys.division(first, count), 0);
                assert_eq!(keys.division(last, count) as u64, count - 1, "{first} to {last} by {count}");
                let middle = keys.division(first + (last - first) / 2, count);
                assert!(middle < count as usize);
            }
        }
        assert_eq!(Keys::ALL.division(1 << 63, 2), 1);
        assert_eq!(Keys::ALL.division((1 << 63) - 1, 2), 0);
    }
}
