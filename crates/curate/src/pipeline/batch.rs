//! The table passed between stages: at most [`Batch::MAX_ROWS`] documents, one per row.
//!
//! Every batch has the text columns `id` (`file#record`, stable), `text` and `source`; stages add their own columns.
//! Batches are immutable: a stage takes one and returns another, sharing unchanged columns.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;

use super::rows::RowSet;
use super::tally::Tally;

/// Columns present in every batch, in this order.
pub const COLUMNS: [&str; 3] = ["id", "text", "source"];

/// Some documents and their attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    table: RecordBatch,
}

impl Batch {
    /// Maximum number of rows in a batch made by a source.
    pub const MAX_ROWS: usize = 1024;
    /// Text size at which a source closes a batch; the last text may exceed it.
    pub const MAX_TEXT_BYTES: usize = 8 << 20;

    /// Wraps an Arrow table.
    ///
    /// # Errors
    /// A message if one of [`COLUMNS`] is missing, is not text or contains nulls.
    pub fn new(table: RecordBatch) -> Result<Batch, String> {
        for name in COLUMNS {
            let column = table.column_by_name(name).ok_or_else(|| format!("no column `{name}`"))?;
            if column.data_type() != &DataType::Utf8 {
                return Err(format!("column `{name}` holds {}, not Utf8", column.data_type()));
            }
            if column.null_count() > 0 {
                return Err(format!("column `{name}` has nulls"));
            }
        }
        Ok(Batch { table })
    }

    /// Creates a batch from equally many ids, texts and sources.
    pub fn of(ids: StringArray, texts: StringArray, sources: StringArray) -> Batch {
        let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(texts), Arc::new(sources)];
        Batch { table: table(Batch::schema(&[]), columns) }
    }

    /// Schema of a batch with additional text columns of these names.
    pub fn schema(extra: &[&str]) -> SchemaRef {
        let common = COLUMNS.iter().map(|name| Field::new(*name, DataType::Utf8, false));
        let extra = extra.iter().map(|name| Field::new(*name, DataType::Utf8, true));
        Arc::new(Schema::new(common.chain(extra).collect::<Vec<_>>()))
    }

    /// The Arrow table.
    pub fn table(&self) -> &RecordBatch {
        &self.table
    }

    /// Number of documents.
    pub fn rows(&self) -> usize {
        self.table.num_rows()
    }

    /// The texts.
    pub fn texts(&self) -> &StringArray {
        self.common(1)
    }

    /// The text of a row.
    pub fn text(&self, row: usize) -> &str {
        self.texts().value(row)
    }

    /// The id of a row.
    pub fn id(&self, row: usize) -> &str {
        self.common(0).value(row)
    }

    /// The source of a row.
    pub fn source(&self, row: usize) -> &str {
        self.common(2).value(row)
    }

    /// UTF-8 bytes of all texts.
    pub fn text_bytes(&self) -> u64 {
        let ends = self.texts().value_offsets();
        (ends[ends.len() - 1] - ends[0]) as u64
    }

    /// A text column added by an earlier stage; `None` if there is none of this name and type.
    pub fn column(&self, name: &str) -> Option<&StringArray> {
        self.table.column_by_name(name)?.as_any().downcast_ref()
    }

    /// Replaces the texts, one per row. Copies nothing if all are borrowed from the batch.
    pub fn with_texts(self, texts: &[Cow<'_, str>]) -> Batch {
        assert_eq!(texts.len(), self.rows(), "Batch::with_texts: one text for each row");
        if texts.iter().all(|text| matches!(text, Cow::Borrowed(_))) {
            let same = |(row, text): (usize, &Cow<'_, str>)| std::ptr::eq::<str>(&**text, self.text(row));
            if texts.iter().enumerate().all(same) {
                return self;
            }
        }
        let bytes = texts.iter().map(|text| text.len()).sum();
        let mut column = StringBuilder::with_capacity(texts.len(), bytes);
        texts.iter().for_each(|text| column.append_value(text));
        self.with_column("text", Arc::new(column.finish()))
    }

    /// Adds a column, or replaces the one of this name.
    pub fn with_column(self, name: &str, column: ArrayRef) -> Batch {
        assert_eq!(column.len(), self.rows(), "Batch::with_column {name}: one value for each row");
        let schema = self.table.schema();
        let nullable = !COLUMNS.contains(&name);
        let field = Arc::new(Field::new(name, column.data_type().clone(), nullable));
        let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
        let mut columns = self.table.columns().to_vec();
        match schema.index_of(name) {
            Ok(index) => (fields[index], columns[index]) = (field, column),
            Err(_) => {
                fields.push(field);
                columns.push(column);
            }
        }
        Batch { table: table(Arc::new(Schema::new(fields)), columns) }
    }

    /// A range of rows, without copying.
    pub fn slice(&self, first: usize, rows: usize) -> Batch {
        Batch { table: self.table.slice(first, rows) }
    }

    /// Returns the Arrow table.
    pub fn into_table(self) -> RecordBatch {
        self.table
    }

    /// Keeps the rows whose flag is true.
    pub fn keep(self, keep: &[bool]) -> Batch {
        assert_eq!(keep.len(), self.rows(), "Batch::keep: one answer for each row");
        if keep.iter().all(|&keep| keep) {
            return self;
        }
        match filter_record_batch(&self.table, &BooleanArray::from(keep.to_vec())) {
            Ok(table) => Batch { table },
            Err(error) => panic!("Batch::keep: {error}"),
        }
    }

    /// Removes and counts the documents in `dropped`; the first document of the batch has number `first`.
    pub fn without(self, first: u64, dropped: &RowSet, reason: &str, tally: &mut Tally) -> Batch {
        let keep: Vec<bool> = (0..self.rows()).map(|row| !dropped.contains(first + row as u64)).collect();
        for row in (0..self.rows()).filter(|&row| !keep[row]) {
            tally.drop(reason, self.text(row).len() as u64);
        }
        self.keep(&keep)
    }

    fn common(&self, index: usize) -> &StringArray {
        // The common columns come first unless a file written by another program orders them differently.
        let column = self.table.column_by_name(COLUMNS[index]);
        match column.and_then(|column| column.as_any().downcast_ref()) {
            Some(column) => column,
            None => panic!("Batch: column `{}` is not text", COLUMNS[index]),
        }
    }
}

fn table(schema: SchemaRef, columns: Vec<ArrayRef>) -> RecordBatch {
    match RecordBatch::try_new(schema, columns) {
        Ok(table) => table,
        Err(error) => panic!("Batch: {error}"),
    }
}

/// Collects documents into batches.
pub(crate) struct Collector {
    extra: Vec<String>,
    ids: StringBuilder,
    texts: StringBuilder,
    sources: StringBuilder,
    columns: Vec<StringBuilder>,
}

impl Collector {
    /// Creates a collector for documents with additional text columns `extra`.
    pub fn new(extra: &[&str]) -> Collector {
        let columns = extra.iter().map(|_| StringBuilder::new()).collect();
        let (ids, texts, sources) = (StringBuilder::new(), StringBuilder::new(), StringBuilder::new());
        let extra = extra.iter().map(|name| (*name).to_owned()).collect();
        Collector { extra, ids, texts, sources, columns }
    }

    /// Adds a document; `values` belong to the additional columns.
    pub fn push(&mut self, id: &str, text: &str, source: &str, values: &[Option<&str>]) {
        self.ids.append_value(id);
        self.texts.append_value(text);
        self.sources.append_value(source);
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.append_option(*value);
        }
    }

    /// Takes the batch collected so far, leaving the collector empty.
    pub fn take(&mut self) -> Batch {
        let extra: Vec<&str> = self.extra.iter().map(String::as_str).collect();
        let common = [&mut self.ids, &mut self.texts, &mut self.sources];
        let all = common.into_iter().chain(self.columns.iter_mut());
        let columns: Vec<ArrayRef> = all.map(|column| Arc::new(column.finish()) as ArrayRef).collect();
        Batch { table: table(Batch::schema(&extra), columns) }
    }
}
