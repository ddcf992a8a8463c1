//! Parquet: one text column, a few rows at a time.
//!
//! The third-party decoder faces files of any origin. It reports most damage as errors, but some by a panic, so every
//! call into it is guarded; a failed row group is counted with its rows, and reading continues with the next one.

use std::collections::VecDeque;
use std::path::Path;

use fathom_base::guard;
use fathom_prose::extract::Content;
use parquet::basic::Type as PhysicalType;
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;

use super::access::Seekable;
use super::columns::{Column, Values, read_cells};
use super::record::Columns;
use super::records::{Loss, Raw, Records, Step};
use crate::counters::Reason;
use crate::error::Error;

/// Rows decoded at once: few, since each may be as long as a book.
const BATCH_ROWS: usize = 8;

/// Rows of one file.
pub(super) struct Rows {
    reader: SerializedFileReader<Seekable>,
    /// Text column.
    column: Column,
    /// Columns returned with the text.
    others: Vec<Column>,
    limit: usize,
    next_group: usize,
    /// Number of rows in all row groups before `group`.
    first_row: u64,
    group: Option<Group>,
    ready: VecDeque<Step>,
}

type Cells = ColumnReaderImpl<ByteArrayType>;

/// Current row group.
struct Group {
    column: Cells,
    others: Vec<Values>,
    rows: u64,
    done: u64,
}

impl Rows {
    /// Reads the footer and locates the text column and those of `columns` that exist and hold strings or numbers.
    ///
    /// # Errors
    /// [`Error::BadFile`] if the footer is broken, [`Error::NoTextColumn`] if `field` is not a plain string column,
    /// [`Error::Unavailable`] if reading the footer failed for a transient reason.
    pub(super) fn open(
        path: &Path,
        file: Seekable,
        field: &str,
        columns: &[String],
        limit: usize,
    ) -> Result<Rows, Error> {
        let access = file.access().clone();
        let bad =
            |detail| access.or_failure(Error::BadFile { path: path.to_path_buf(), kind: "Parquet", detail });
        let reader = fenced(|| SerializedFileReader::new(file)).map_err(bad)?;
        let schema = reader.metadata().file_metadata().schema_descr();
        let index = text_column(schema, field).map_err(|problem| Error::NoTextColumn {
            path: path.to_path_buf(),
            problem,
            columns: text_columns(schema).join(", "),
        })?;
        let column = Column::new(schema, field, index);
        let others = columns.iter().filter_map(|name| Column::named(schema, name)).collect();
        let (next_group, first_row, group, ready) = (0, 0, None, VecDeque::new());
        Ok(Rows { reader, column, others, limit, next_group, first_row, group, ready })
    }

    /// Opens the next row group; false after the last one.
    fn open_group(&mut self) -> bool {
        if self.next_group >= self.reader.num_row_groups() {
            return false;
        }
        let index = self.next_group;
        self.next_group += 1;
        let rows = u64::try_from(self.reader.metadata().row_group(index).num_rows()).unwrap_or(0);
        let opened = fenced(|| {
            let group = self.reader.get_row_group(index)?;
            let column = get_typed_column_reader(group.get_column_reader(self.column.index)?);
            let others = self.others.iter().map(|c| Values::of(group.get_column_reader(c.index)?));
            Ok((column, others.collect::<parquet::errors::Result<Vec<_>>>()?))
        });
        match opened {
            Ok((column, others)) => self.group = Some(Group { column, others, rows, done: 0 }),
            Err(detail) => {
                self.lose(0, rows, detail);
                self.first_row = self.first_row.saturating_add(rows);
            }
        }
        true
    }

    /// Counts the rows of the row group after `done` as lost.
    fn lose(&mut self, done: u64, rows: u64, detail: String) {
        let first = self.first_row.saturating_add(done).saturating_add(1);
        let place = format!("row group {}, row {first} and after", self.next_group);
        let records = rows.saturating_sub(done).max(1);
        let loss = Loss { reason: Reason::BrokenArchive, records, bytes: 0, place, detail };
        self.ready.push_back(Step::Lost(loss));
    }

    /// Decodes the next rows of the current row group into `ready`.
    fn read_batch(&mut self, mut group: Group) {
        let read = fenced(|| {
            let texts = read_cells(&mut group.column, &self.column, BATCH_ROWS)?;
            let mut others = Vec::with_capacity(self.others.len());
            for (cells, column) in group.others.iter_mut().zip(&self.others) {
                others.push(cells.next(column, texts.len())?);
            }
            Ok((texts, others))
        });
        let (texts, mut others) = match read {
            Ok(read) => read,
            Err(detail) => {
                self.lose(group.done, group.rows, detail);
                self.first_row = self.first_row.saturating_add(group.rows);
                return;
            }
        };
        if texts.is_empty() {
            if group.done < group.rows {
                self.lose(group.done, group.rows, "the column ends early".to_string());
            }
            self.first_row = self.first_row.saturating_add(group.rows);
            return;
        }
        for (i, text) in texts.iter().enumerate() {
            group.done += 1;
            let row = self.first_row.saturating_add(group.done);
            let mut columns = Columns::new();
            for (values, column) in others.iter_mut().zip(&self.others) {
                let value = values.get_mut(i).and_then(Option::take);
                columns.extend(value.map(|value| (column.name.clone(), value)));
            }
            self.ready.push_back(self.row(text.as_ref().map(ByteArray::data), columns, row));
        }
        self.group = Some(group);
    }

    fn row(&self, value: Option<&[u8]>, columns: Columns, row: u64) -> Step {
        let lost = |reason, bytes: usize, detail| {
            let place = format!("row {row}");
            Step::Lost(Loss { reason, records: 1, bytes: bytes as u64, place, detail })
        };
        let Some(value) = value else { return lost(Reason::NoTextField, 0, "null".to_string()) };
        if value.len() > self.limit {
            let detail = format!("{} bytes, the limit is {}", value.len(), self.limit);
            return lost(Reason::TooLarge, value.len(), detail);
        }
        match std::str::from_utf8(value) {
            Ok(text) => {
                let content = Content::Text(text.to_string());
                Step::Record(Raw { content, number: Some(row), columns })
            }
            Err(error) => lost(Reason::InvalidUtf8, value.len(), error.to_string()),
        }
    }
}

impl Records for Rows {
    fn step(&mut self) -> Step {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return step;
            }
            if let Some(group) = self.group.take() {
                self.read_batch(group);
            } else if !self.open_group() {
                return Step::End;
            }
        }
    }
}

/// Runs one call of the decoder, converting errors and panics to messages.
fn fenced<T>(call: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, String> {
    match guard::guarded(call) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the decoder panicked on it".to_string()),
    }
}

/// Names of all columns readable as text.
fn text_columns(schema: &SchemaDescriptor) -> Vec<String> {
    let usable = |c: &usize| is_text(schema, *c);
    (0..schema.num_columns()).filter(usable).map(|c| schema.column(c).path().string()).collect()
}

fn is_text(schema: &SchemaDescriptor, column: usize) -> bool {
    let column = schema.column(column);
    column.physical_type() == PhysicalType::BYTE_ARRAY && column.max_rep_level() == 0
}

/// Index of the column named `field`, or a description of the problem.
fn text_column(schema: &SchemaDescriptor, field: &str) -> Result<usize, String> {
    let mut columns = 0..schema.num_columns();
    let Some(index) = columns.find(|&c| schema.column(c).path().string() == field) else {
        return Err(format!("no column `{field}`"));
    };
    let column = schema.column(index);
    if column.max_rep_level() != 0 {
        return Err(format!("column `{field}` holds lists"));
    }
    if !is_text(schema, index) {
        return Err(format!("column `{field}` holds {}, not strings", column.physical_type()));
    }
    Ok(index)
}
