//! JSON lines, plain or from a decompressor: one object a line, one of its fields is the text.

use std::fmt;
use std::io::{self, BufRead};

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::{Loss, Records, Step};
use crate::counters::Reason;

/// The lines of one file. Offsets are those of the decompressed stream.
pub(super) struct Lines {
    input: Box<dyn BufRead + Send>,
    field: String,
    limit: usize,
    packed: bool,
    line: u64,
    offset: u64,
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
    pub(super) fn new(input: Box<dyn BufRead + Send>, field: String, limit: usize) -> Lines {
        Lines { input, field, limit, packed: false, line: 0, offset: 0, buffer: Vec::new(), ended: false }
    }

    /// The input is a decompressor: its errors are damage of the data, not of the disk.
    pub(super) fn packed(mut self) -> Lines {
        self.packed = true;
        self
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
            let start = self.offset;
            self.line += 1;
            let (line, length) = match self.read_line() {
                Ok(read) => read,
                Err(error) if self.packed => {
                    self.ended = true;
                    return self.lost(Reason::BrokenArchive, 0, start, error.to_string());
                }
                Err(error) => return Step::Failed(error),
            };
            self.offset += length;
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
                    return match field_of(bytes, &self.field) {
                        Ok(Found::Text(text)) => Step::Record { text, number: Some(self.line) },
                        Ok(Found::Other(kind)) => {
                            let detail = format!("`{}` is {kind}, not a string", self.field);
                            self.lost(Reason::NoTextField, length, start, detail)
                        }
                        Ok(Found::Missing) => {
                            let detail = format!("no field `{}`", self.field);
                            self.lost(Reason::NoTextField, length, start, detail)
                        }
                        Err(error) => self.lost(Reason::BadJson, length, start, error.to_string()),
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

/// Parses `line` as an object and keeps one field; the last one counts where the name repeats, as in most
/// parsers.
fn field_of(line: &[u8], field: &str) -> Result<Found, serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(line);
    let found = parser.deserialize_map(Wanted(field))?;
    parser.end()?;
    Ok(found)
}

struct Wanted<'a>(&'a str);

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let mut found = Found::Missing;
        while let Some(key) = map.next_key::<String>()? {
            if key != self.0 {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            found = match map.next_value::<Value>()? {
                Value::String(text) => Found::Text(text),
                Value::Null => Found::Other("null"),
                Value::Bool(_) => Found::Other("a boolean"),
                Value::Number(_) => Found::Other("a number"),
                Value::Array(_) => Found::Other("an array"),
                Value::Object(_) => Found::Other("an object"),
            };
        }
        Ok(found)
    }
}
