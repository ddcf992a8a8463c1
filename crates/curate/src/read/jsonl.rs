//! JSON lines, plain or from a decompressor: one object a line, one of its fields is the text.

use std::fmt;
use std::io::{self, BufRead};

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::packed::Packed;
use fathom_prose::extract::Content;

use super::record::Columns;
use super::{Loss, Raw, Records, Step};
use crate::counters::Reason;

/// The lines of one file. Offsets are those of the decompressed stream.
pub(super) struct Lines {
    input: Packed,
    field: String,
    columns: Vec<String>,
    limit: usize,
    line: u64,
    buffer: Vec<u8>,
    ended: bool,
}

/// How a line ended.
enum Line {
    Whole,
    TooLong,
    None,
}

impl Lines {
    /// `field` holds the text; `columns` are other fields to hand out where they are there.
    pub(super) fn new(input: Packed, field: &str, columns: &[String], limit: usize) -> Lines {
        let (field, columns) = (field.to_string(), columns.to_vec());
        Lines { input, field, columns, limit, line: 0, buffer: Vec::new(), ended: false }
    }

    /// Reads one line into `buffer` and its length with the line end; a line over the limit is skipped unread.
    fn read_line(&mut self) -> io::Result<(Line, u64)> {
        self.buffer.clear();
        let (mut length, mut too_long) = (0u64, false);
        loop {
            let chunk = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let end = memchr::memchr(b'\n', chunk);
            let taken = end.map_or(chunk.len(), |e| e + 1);
            too_long |= self.buffer.len() + taken > self.limit;
            if !too_long {
                self.buffer.extend_from_slice(&chunk[..taken]);
            }
            self.input.consume(taken);
            length += taken as u64;
            if end.is_some() || taken == 0 {
                let line = match (too_long, length) {
                    (true, _) => Line::TooLong,
                    (false, 0) => Line::None,
                    (false, _) => Line::Whole,
                };
                return Ok((line, length));
            }
        }
    }

    fn lost(&self, reason: Reason, bytes: u64, start: u64, detail: String) -> Step {
        let place = format!("line {}, byte {start}", self.line);
        Step::Lost(Loss { reason, records: 1, bytes, place, detail })
    }
}

impl Records for Lines {
    fn step(&mut self) -> Step {
        while !self.ended {
            let start = self.input.decoded();
            self.line += 1;
            let (line, length) = match self.read_line() {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let step = self.lost(Reason::BrokenArchive, 0, start, error.to_string());
                    return match self.input.resync() {
                        Ok(_) => step,
                        Err(error) => Step::Failed(error),
                    };
                }
                Err(error) => return Step::Failed(error),
            };
            match line {
                Line::None => self.ended = true,
                Line::TooLong => {
                    let detail = format!("{length} bytes, the limit is {}", self.limit);
                    return self.lost(Reason::TooLarge, length, start, detail);
                }
                Line::Whole => {
                    let bytes = self.buffer.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(&self.buffer);
                    if bytes.iter().all(u8::is_ascii_whitespace) {
                        continue;
                    }
                    let (found, columns) = match fields_of(bytes, &self.field, &self.columns) {
                        Ok(fields) => fields,
                        Err(error) => return self.lost(Reason::BadJson, length, start, error.to_string()),
                    };
                    return match found {
                        Found::Text(text) => {
                            let content = Content::Text(text);
                            Step::Record(Raw { content, number: Some(self.line), columns })
                        }
                        Found::Other(kind) => {
                            let detail = format!("`{}` is {kind}, not a string", self.field);
                            self.lost(Reason::NoTextField, length, start, detail)
                        }
                        Found::Missing => {
                            let detail = format!("no field `{}`", self.field);
                            self.lost(Reason::NoTextField, length, start, detail)
                        }
                    };
                }
            }
        }
        Step::End
    }
}

/// What a line holds under the wanted name.
enum Found {
    Text(String),
    Other(&'static str),
    Missing,
}

/// Parses `line` as an object and keeps the text field and the columns; the last one counts where a name repeats, as
/// in most parsers. A column that is no string is handed out as JSON; null and missing ones are left out.
fn fields_of(line: &[u8], field: &str, columns: &[String]) -> Result<(Found, Columns), serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(line);
    let (found, mut values) = parser.deserialize_map(Wanted { field, columns })?;
    parser.end()?;
    let mut kept = Columns::new();
    for (name, value) in columns.iter().zip(&mut values) {
        kept.extend(value.take().map(|value| (name.clone(), value)));
    }
    Ok((found, kept))
}

struct Wanted<'a> {
    field: &'a str,
    columns: &'a [String],
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = (Found, Vec<Option<String>>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Found::Missing;
        let mut values = vec![None; self.columns.len()];
        while let Some(key) = map.next_key::<String>()? {
            let column = self.columns.iter().position(|c| *c == key);
            if key != self.field && column.is_none() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value::<Value>()?;
            if let Some(column) = column {
                values[column] = match &value {
                    Value::Null => None,
                    Value::String(text) => Some(text.clone()),
                    other => Some(other.to_string()),
                };
            }
            if key == self.field {
                found = match value {
                    Value::String(text) => Found::Text(text),
                    Value::Null => Found::Other("null"),
                    Value::Bool(_) => Found::Other("a boolean"),
                    Value::Number(_) => Found::Other("a number"),
                    Value::Array(_) => Found::Other("an array"),
                    Value::Object(_) => Found::Other("an object"),
                };
            }
        }
        Ok((found, values))
    }
}
