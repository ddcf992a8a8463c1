//! Rows of a query for people and for programs.

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::{Map, Value};

use crate::error::Error;

/// Characters of a cell in a text table.
const CELL: usize = 60;

/// Rows as an aligned table; long cells are cut, line ends shown as spaces.
///
/// # Errors
/// A column of a type that cannot be shown.
pub fn text_table(batches: &[RecordBatch]) -> Result<String, Error> {
    let Some(first) = batches.first() else { return Ok("no rows\n".to_owned()) };
    let names: Vec<String> = first.schema().fields().iter().map(|field| field.name().clone()).collect();
    let mut rows = vec![names];
    for batch in batches {
        let columns = formatters(batch)?;
        for row in 0..batch.num_rows() {
            rows.push(columns.iter().map(|column| cell(&column.value(row).to_string())).collect());
        }
    }
    let wide = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(wide).collect();
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
        if number == 0 {
            let lines: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
            out.push_str(&lines.join("  "));
            out.push('\n');
        }
    }
    Ok(out)
}

/// Rows as JSON objects, one a line; numbers and truth values as such, everything else as text.
///
/// # Errors
/// A column of a type that cannot be shown.
pub fn json_lines(batch: &RecordBatch) -> Result<String, Error> {
    let schema = batch.schema();
    let columns = formatters(batch)?;
    let mut out = String::new();
    for row in 0..batch.num_rows() {
        let mut object = Map::new();
        for (index, field) in schema.fields().iter().enumerate() {
            let kind = field.data_type();
            let text = columns[index].value(row).to_string();
            let value = if batch.column(index).is_null(row) {
                Value::Null
            } else if kind.is_numeric() || kind.is_null() || *kind == arrow::datatypes::DataType::Boolean {
                serde_json::from_str(&text).unwrap_or(Value::String(text))
            } else {
                Value::String(text)
            };
            object.insert(field.name().clone(), value);
        }
        out.push_str(&Value::Object(object).to_string());
        out.push('\n');
    }
    Ok(out)
}

fn formatters(batch: &RecordBatch) -> Result<Vec<ArrayFormatter<'_>>, Error> {
    let options = FormatOptions::default();
    let made = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
    made.collect::<Result<_, _>>().map_err(|e| Error::Query { detail: e.to_string() })
}

fn cell(text: &str) -> String {
    let flat = |c: char| if c.is_control() { ' ' } else { c };
    if text.chars().count() <= CELL {
        return text.chars().map(flat).collect();
    }
    text.chars().take(CELL - 3).map(flat).chain("...".chars()).collect()
}
