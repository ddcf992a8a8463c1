//! Export of the table as JSON lines, one file per part. The table itself is already Parquet.

use std::io::Write;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Maker;
use crate::error::Error;
use crate::pipeline::{Barrier, Batch, Job, ShareOf, Tally, Work};

/// How the files look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Format {
    /// One JSON object a line, as it is.
    #[serde(rename = "jsonl")]
    Jsonl,
    /// One JSON object a line, gzip.
    #[serde(rename = "jsonl.gz")]
    JsonlGz,
    /// One JSON object a line, Zstandard.
    #[default]
    #[serde(rename = "jsonl.zst")]
    JsonlZst,
}

/// Options of `write`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WriteOptions {
    /// How the files look.
    pub format: Format,
    /// The columns that are written; an empty list writes all.
    pub columns: Vec<String>,
}

/// Writes the table for other programs.
pub(super) struct WriteFiles(WriteOptions);

impl Maker for WriteFiles {
    type Options = WriteOptions;
    const NAME: &'static str = "write";
    const ABOUT: &'static str = "writes the table as JSON lines (plain, .gz, .zst), one file a part";

    fn make(options: WriteOptions) -> Result<Work, Error> {
        Ok(Work::Sink(Box::new(WriteFiles(options))))
    }
}

impl Barrier for WriteFiles {
    fn run(&self, job: &Job<'_>, _: &mut Tally) -> Result<(), Error> {
        let end = match self.0.format {
            Format::Jsonl => "jsonl",
            Format::JsonlGz => "jsonl.gz",
            Format::JsonlZst => "jsonl.zst",
        };
        let name = |index: usize| job.folder().join(format!("part-{index:05}.{end}"));
        job.export(&name, &|batch| self.lines(batch))
    }

    fn rehearse(&self, empty: &Batch) -> Result<(), Error> {
        self.chosen(empty).map(drop)
    }

    fn share(&self) -> Option<Box<ShareOf<'_>>> {
        Some(Box::new(|batch: &Batch| self.lines(batch)))
    }
}

impl WriteFiles {
    /// Encodes a batch as compressed lines. Gzip members and Zstandard frames can be concatenated, so batches are
    /// compressed separately.
    fn lines(&self, batch: &Batch) -> Result<Vec<u8>, Error> {
        let table = self.chosen(batch)?;
        let mut text = Vec::with_capacity(batch.text_bytes() as usize * 5 / 4);
        for row in 0..table.num_rows() {
            object(&table, row, &mut text)?;
        }
        let failed = |e| Error::write("compress", Path::new("a batch"), e);
        match self.0.format {
            Format::Jsonl => Ok(text),
            Format::JsonlZst => zstd::encode_all(&text[..], 3).map_err(failed),
            Format::JsonlGz => {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
                gzip.write_all(&text).and_then(|()| gzip.finish()).map_err(failed)
            }
        }
    }

    fn chosen(&self, batch: &Batch) -> Result<RecordBatch, Error> {
        let table = batch.table();
        if self.0.columns.is_empty() {
            return Ok(table.clone());
        }
        let schema = table.schema();
        let place = |name: &String| {
            schema.index_of(name).map_err(|_| {
                let has = schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", ");
                Error::Table { detail: format!("`write` is to write `{name}`, the table has {has}") }
            })
        };
        let places = self.0.columns.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        table.project(&places).map_err(|e| Error::Table { detail: e.to_string() })
    }
}

/// Writes one row as a JSON object and a line end.
fn object(table: &RecordBatch, row: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    let schema = table.schema();
    out.push(b'{');
    for (index, field) in schema.fields().iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json(field.name(), out)?;
        out.push(b':');
        let column = table.column(index);
        if column.is_null(row) {
            out.extend_from_slice(b"null");
            continue;
        }
        match column.data_type() {
            DataType::Utf8 => json(column.as_string::<i32>().value(row), out)?,
            DataType::Float32 => json(&column.as_primitive::<Float32Type>().value(row), out)?,
            DataType::Float64 => json(&column.as_primitive::<Float64Type>().value(row), out)?,
            DataType::Int64 => json(&column.as_primitive::<Int64Type>().value(row), out)?,
            DataType::UInt32 => json(&column.as_primitive::<UInt32Type>().value(row), out)?,
            DataType::UInt64 => json(&column.as_primitive::<UInt64Type>().value(row), out)?,
            DataType::Boolean => json(&column.as_boolean().value(row), out)?,
            other => {
                let detail = format!("column `{}` holds {other}, which has no form in JSON", field.name());
                return Err(Error::Table { detail });
            }
        }
    }
    out.extend_from_slice(b"}\n");
    Ok(())
}

fn json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Error> {
    serde_json::to_writer(out, value).map_err(|e| Error::Table { detail: e.to_string() })
}
