//! Rows of a query for people and for programs.

use serde_json::{Map, Value};

use super::Answer;

/// Characters of a cell in a text table.
const CELL: usize = 60;

/// Rows as an aligned table; long cells are cut, line ends shown as spaces.
pub fn text_table(answer: &Answer) -> String {
    if answer.rows.is_empty() {
        return "no rows\n".to_owned();
    }
    let mut rows = vec![answer.names.clone()];
    rows.extend(answer.rows.iter().map(|row| row.iter().map(|value| cell(&shown(value))).collect()));
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
    out
}

/// A row as a JSON object and the end of its line.
pub fn json_line(names: &[String], row: &[Value]) -> String {
    let object: Map<String, Value> = names.iter().cloned().zip(row.iter().cloned()).collect();
    format!("{}\n", Value::Object(object))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn cell(text: &str) -> String {
    let flat = |c: char| if c.is_control() { ' ' } else { c };
    if text.chars().count() <= CELL {
        return text.chars().map(flat).collect();
    }
    text.chars().take(CELL - 3).map(flat).chain("...".chars()).collect()
}
