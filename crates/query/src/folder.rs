//! A folder of Parquet files as a virtual table of SQLite.
#![allow(unsafe_code)] // SQLite reads the first field of these structures, so their traits are unsafe.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use rusqlite::types::Null;
use rusqlite::vtab::{Context, Filters, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor};
use rusqlite::{Connection, Result, ffi};

use crate::error::quoted;

/// The declared type of a column of truth values.
pub(crate) const BOOLEAN: &str = "BOOLEAN";

/// Rows read at once: they carry whole documents.
const BATCH_ROWS: usize = 256;

/// The files of a table, by name.
struct Source {
    files: Vec<PathBuf>,
    schema: SchemaRef,
    rows: i64,
}

/// Makes the folder a table; returns the names of its columns.
pub(crate) fn register(
    connection: &Connection,
    name: &str,
    folder: &Path,
) -> Result<Vec<String>, crate::error::Error> {
    const MODULE: Module<'_, Table> = Module::eponymous_only_module();
    let source = Arc::new(Source::open(folder).map_err(crate::error::Error::Folder)?);
    let columns = source.schema.fields().iter().map(|field| field.name().clone()).collect();
    connection.create_module(name, &MODULE, Some(source))?;
    Ok(columns)
}

impl Source {
    fn open(folder: &Path) -> Result<Source, String> {
        let entries =
            std::fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
        let mut files: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "parquet"))
            .collect();
        files.sort();
        let (mut schema, mut rows): (Option<SchemaRef>, i64) = (None, 0);
        for file in &files {
            let opened = open(file)?;
            rows += opened.metadata().file_metadata().num_rows();
            match &schema {
                None => schema = Some(opened.schema().clone()),
                Some(first) if first.fields() == opened.schema().fields() => {}
                Some(_) => {
                    return Err(format!("{} has other columns than {}", file.display(), files[0].display()));
                }
            }
        }
        let schema = schema.ok_or_else(|| format!("{} has no Parquet files", folder.display()))?;
        for field in schema.fields() {
            if declared(field.data_type()).is_none() {
                let (name, kind) = (field.name(), field.data_type());
                return Err(format!(
                    "column {name} of {} holds {kind}, which SQL cannot name",
                    folder.display()
                ));
            }
        }
        Ok(Source { files, schema, rows })
    }

    fn declaration(&self) -> String {
        let column = |field: &Arc<arrow_schema::Field>| {
            format!("{} {}", quoted(field.name()), declared(field.data_type()).unwrap_or_default())
        };
        let columns: Vec<String> = self.schema.fields().iter().map(column).collect();
        format!("CREATE TABLE x({})", columns.join(", "))
    }
}

/// The type that a column is declared with, where SQL has one.
fn declared(kind: &DataType) -> Option<&'static str> {
    match kind {
        DataType::Utf8 => Some("TEXT"),
        DataType::Boolean => Some(BOOLEAN),
        DataType::Float32 | DataType::Float64 => Some("REAL"),
        kind if kind.is_integer() => Some("INTEGER"),
        _ => None,
    }
}

fn open(file: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>, String> {
    let bad = |e: &dyn std::fmt::Display| format!("cannot read {}: {e}", file.display());
    let opened = File::open(file).map_err(|e| bad(&e))?;
    ParquetRecordBatchReaderBuilder::try_new(opened).map_err(|e| bad(&e))
}

fn failed(detail: String) -> rusqlite::Error {
    rusqlite::Error::ModuleError(detail)
}

#[repr(C)]
struct Table {
    /// SQLite's part; must be first.
    base: ffi::sqlite3_vtab,
    source: Arc<Source>,
}

// SAFETY: `repr(C)` with SQLite's part first, as the trait asks.
unsafe impl<'vtab> VTab<'vtab> for Table {
    type Aux = Arc<Source>;
    type Cursor = Cursor;

    fn connect(
        db: &mut VTabConnection,
        source: Option<&Arc<Source>>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Table)> {
        let source = source.ok_or_else(|| failed("a table without files".to_owned()))?.clone();
        let declaration = CString::new(source.declaration()).map_err(|e| failed(e.to_string()))?;
        db.config(VTabConfig::Innocuous)?;
        Ok((Cow::Owned(declaration), Table { base: ffi::sqlite3_vtab::default(), source }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        info.set_idx_str(&format!("{:x}", info.col_used()));
        info.set_estimated_rows(self.source.rows);
        info.set_estimated_cost(self.source.rows as f64);
        Ok(true)
    }

    fn open(&mut self) -> Result<Cursor> {
        Ok(Cursor {
            base: ffi::sqlite3_vtab_cursor::default(),
            source: self.source.clone(),
            used: u64::MAX,
            next_file: 0,
            reader: None,
            batch: None,
            row: 0,
            passed: 0,
        })
    }
}

#[repr(C)]
struct Cursor {
    /// SQLite's part; must be first.
    base: ffi::sqlite3_vtab_cursor,
    source: Arc<Source>,
    /// A bit for each column that the query names; the last stands for all behind it.
    used: u64,
    next_file: usize,
    reader: Option<ParquetRecordBatchReader>,
    batch: Option<RecordBatch>,
    row: usize,
    /// Rows of batches before this one.
    passed: usize,
}

impl Cursor {
    fn is_used(&self, column: usize) -> bool {
        self.used >> column.min(63) & 1 == 1
    }

    /// Goes on to the next batch that has rows; at the end there is none.
    fn next_batch(&mut self) -> Result<()> {
        self.row = 0;
        self.passed += self.batch.take().map_or(0, |batch| batch.num_rows());
        loop {
            if let Some(reader) = &mut self.reader {
                match reader.next().transpose().map_err(|e| failed(e.to_string()))? {
                    Some(batch) if batch.num_rows() == 0 => continue,
                    Some(batch) => {
                        self.batch = Some(batch);
                        return Ok(());
                    }
                    None => self.reader = None,
                }
            }
            let Some(file) = self.source.files.get(self.next_file) else { return Ok(()) };
            self.next_file += 1;
            let opened = open(file).map_err(failed)?;
            let used = (0..self.source.schema.fields().len()).filter(|column| self.is_used(*column));
            let mask = ProjectionMask::roots(opened.parquet_schema(), used);
            let reader = opened.with_projection(mask).with_batch_size(BATCH_ROWS).build();
            self.reader = Some(reader.map_err(|e| failed(e.to_string()))?);
        }
    }
}

// SAFETY: `repr(C)` with SQLite's part first, as the trait asks.
unsafe impl VTabCursor for Cursor {
    fn filter(&mut self, _: c_int, used: Option<&str>, _: &Filters<'_>) -> Result<()> {
        self.used = used.and_then(|used| u64::from_str_radix(used, 16).ok()).unwrap_or(u64::MAX);
        (self.next_file, self.reader, self.batch, self.passed) = (0, None, None, 0);
        self.next_batch()
    }

    fn next(&mut self) -> Result<()> {
        self.row += 1;
        if self.batch.as_ref().is_some_and(|batch| self.row < batch.num_rows()) {
            return Ok(());
        }
        self.next_batch()
    }

    fn eof(&self) -> bool {
        self.batch.is_none()
    }

    fn column(&self, context: &mut Context, column: c_int) -> Result<()> {
        let column = column as usize;
        let Some(batch) = self.batch.as_ref().filter(|_| self.is_used(column)) else {
            return context.set_result(Null);
        };
        let place = (0..column).filter(|before| self.is_used(*before)).count();
        give(context, batch.column(place), self.row)
    }

    fn rowid(&self) -> Result<i64> {
        Ok((self.passed + self.row) as i64)
    }
}

fn give(context: &mut Context, values: &dyn Array, row: usize) -> Result<()> {
    if values.is_null(row) {
        return context.set_result(Null);
    }
    match values.data_type() {
        DataType::Utf8 => context.set_result(values.as_string::<i32>().value(row)),
        DataType::Boolean => context.set_result(values.as_boolean().value(row)),
        // The number that its shortest decimal stands for, so that what is shown is what compares.
        DataType::Float32 => {
            let value = values.as_primitive::<Float32Type>().value(row);
            context.set_result(value.to_string().parse().unwrap_or(f64::from(value)))
        }
        DataType::Float64 => context.set_result(values.as_primitive::<Float64Type>().value(row)),
        DataType::Int8 => context.set_result(values.as_primitive::<Int8Type>().value(row)),
        DataType::Int16 => context.set_result(values.as_primitive::<Int16Type>().value(row)),
        DataType::Int32 => context.set_result(values.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => context.set_result(values.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => context.set_result(values.as_primitive::<UInt8Type>().value(row)),
        DataType::UInt16 => context.set_result(values.as_primitive::<UInt16Type>().value(row)),
        DataType::UInt32 => context.set_result(values.as_primitive::<UInt32Type>().value(row)),
        _ => {
            let value = values.as_primitive::<UInt64Type>().value(row);
            let signed = i64::try_from(value);
            context.set_result(signed.map_err(|_| failed(format!("{value} is beyond SQL's whole numbers")))?)
        }
    }
}
