//! JSON lines, plain or compressed: one object per line, one field of which is the text; `outer.inner` names a nested
//! field.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead};

use fathom_prose::extract::Content;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::lenient::leniently;
use super::packed::{self, Decompressor};
use super::record::Columns;
use super::records::{Loss, NoField, Raw, Records, Step};
use crate::counters::Reason;

/// Maximum number of field names listed when the wanted one is missing.
const NAMES: usize = 24;

/// Lines of one file. Offsets refer to the decompressed stream.
pub(super) struct Lines {
    input: Decompressor,
    field: String,
    columns: Vec<String>,
    limit: usize,
    line: u64,
    buffer: Vec<u8>,
    ended: bool,
    /// Number of objects without the wanted field, until one has it.
    without: u64,
    /// Names of their fields; `None` once an object had the wanted one.
    names: Option<BTreeSet<String>>,
}

/// A byte order mark.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Outcome of reading a line.
enum Line {
    Whole,
    TooLong,
    None,
}

impl Lines {
    /// Creates a reader; `field` holds the text, `columns` are further fields to return if present.
    pub(super) fn new(input: Decompressor, field: &str, columns: &[String], limit: usize) -> Lines {
        let (field, columns) = (field.to_string(), columns.to_vec());
        let (line, buffer, ended) = (0, Vec::new(), false);
        let (without, names) = (0, Some(BTreeSet::new()));
        Lines { input, field, columns, limit, line, buffer, ended, without, names }
    }

    /// Returns true if the file begins as an array, which is a single value rather than lines.
    fn is_array(&mut self) -> io::Result<bool> {
        let head = self.input.fill_buf()?;
        let head = head.strip_prefix(MARK).unwrap_or(head);
        Ok(head.trim_ascii_start().first() == Some(&b'['))
    }

    /// Reports a file that is one JSON value rather than lines.
    fn no_lines(&mut self, what: &str) -> Step {
        self.ended = true;
        let detail = format!("{what}; a file of JSON has one object a line, `jq -c` writes it so");
        Step::Lost(Loss { reason: Reason::BadJson, records: 1, bytes: 0, place: String::new(), detail })
    }

    /// Reads one line into `buffer`; also returns its length including the line end. A line over the limit is skipped
    /// unread.
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
            let read = if self.line == 1 { self.is_array() } else { Ok(false) };
            let read = read.and_then(|array| if array { Ok(None) } else { self.read_line().map(Some) });
            let (line, length) = match read {
                Ok(Some(read)) => read,
                Ok(None) => return self.no_lines("an array"),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let step = self.lost(packed::cause(&error), 0, start, error.to_string());
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
                    if let Some(step) = self.whole(length, start) {
                        return step;
                    }
                }
            }
        }
        Step::End
    }

    fn no_field(&self) -> Option<NoField> {
        let names = self.names.as_ref().filter(|_| self.without > 1)?;
        let problem = format!("none of its {} records has the field `{}`", self.without, self.field);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Some(NoField { problem, names: names.join(", ") })
    }
}

impl Lines {
    /// Parses the line in `buffer`; `None` if it is blank.
    fn whole(&mut self, length: u64, start: u64) -> Option<Step> {
        let bytes = self.buffer.strip_prefix(MARK).unwrap_or(&self.buffer);
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        if self.line == 1 && bytes.trim_ascii() == b"{" {
            return Some(self.no_lines("an object over several lines"));
        }
        let names = || self.names.as_ref().map(|_| BTreeSet::new());
        let visitor = || FieldVisitor { field: &self.field, columns: &self.columns, names: names() };
        let Fields { found, columns, names } = match leniently(bytes, |line| fields_of(line, visitor())) {
            Ok(fields) => fields,
            Err(error) => return Some(self.lost(Reason::BadJson, length, start, error.to_string())),
        };
        Some(match found {
            FieldValue::Text(text) => {
                self.names = None;
                let content = Content::Text(text);
                Step::Record(Raw { content, number: Some(self.line), columns })
            }
            FieldValue::Other(kind) => {
                self.names = None;
                let detail = format!("`{}` is {kind}, not a string", self.field);
                self.lost(Reason::NoTextField, length, start, detail)
            }
            FieldValue::Missing => {
                self.without += 1;
                let mut detail = format!("no field `{}`", self.field);
                if let Some(known) = self.names.as_mut().filter(|known| known.len() < NAMES) {
                    let mut names = names.unwrap_or_default();
                    nested_names(bytes, &mut names);
                    let list: Vec<&str> = names.iter().map(String::as_str).collect();
                    detail += &format!(
                        "; it has {}",
                        if list.is_empty() { "none".into() } else { list.join(", ") }
                    );
                    known.extend(names);
                }
                self.lost(Reason::NoTextField, length, start, detail)
            }
        })
    }
}

/// Value found under the wanted name.
enum FieldValue {
    Text(String),
    Other(&'static str),
    Missing,
}

impl FieldValue {
    fn of(value: Value) -> FieldValue {
        match value {
            Value::String(text) => FieldValue::Text(text),
            Value::Null => FieldValue::Other("null"),
            Value::Bool(_) => FieldValue::Other("a boolean"),
            Value::Number(_) => FieldValue::Other("a number"),
            Value::Array(_) => FieldValue::Other("an array"),
            Value::Object(_) => FieldValue::Other("an object"),
        }
    }
}

/// Fields extracted from a line.
struct Fields {
    found: FieldValue,
    columns: Columns,
    /// Names of its fields, if requested.
    names: Option<BTreeSet<String>>,
}

/// Parses `line` as an object and keeps the text field and the columns; of repeated names the last one wins, as in
/// most parsers. A non-string column is returned as JSON; null and missing ones are left out.
fn fields_of(line: &[u8], visitor: FieldVisitor<'_>) -> Result<Fields, serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(line);
    let fields = parser.deserialize_map(visitor)?;
    parser.end()?;
    Ok(fields)
}

struct FieldVisitor<'a> {
    field: &'a str,
    columns: &'a [String],
    names: Option<BTreeSet<String>>,
}

impl<'de> Visitor<'de> for FieldVisitor<'_> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Fields, A::Error> {
        // A field with the complete dotted name takes precedence over a nested one.
        let (mut whole, mut nested) = (FieldValue::Missing, FieldValue::Missing);
        let mut values = vec![None; self.columns.len()];
        while let Some(key) = map.next_key::<String>()? {
            let in_text = place(self.field, &key);
            if in_text.is_none() && self.columns.iter().all(|column| place(column, &key).is_none()) {
                map.next_value::<IgnoredAny>()?;
            } else {
                let value = map.next_value::<Value>()?;
                for (column, kept) in self.columns.iter().zip(&mut values) {
                    let Some(inner) = place(column, &key).and_then(|below| at(&value, below)) else {
                        continue;
                    };
                    *kept = shown(inner);
                }
                match in_text {
                    Some("") => whole = FieldValue::of(value),
                    Some(below) => {
                        nested = at(&value, below).cloned().map_or(FieldValue::Missing, FieldValue::of)
                    }
                    None => {}
                }
            }
            if let Some(names) = self.names.as_mut().filter(|names| names.len() < NAMES) {
                names.insert(key);
            }
        }
        let found = if matches!(whole, FieldValue::Missing) { nested } else { whole };
        let columns =
            self.columns.iter().zip(values).filter_map(|(name, value)| Some((name.clone(), value?)));
        Ok(Fields { found, columns: columns.collect(), names: self.names })
    }
}

/// Part of the path `wanted` below the field `key`: empty if nothing remains, `None` if the field does not match.
fn place<'w>(wanted: &'w str, key: &str) -> Option<&'w str> {
    let below = wanted.strip_prefix(key)?;
    if below.is_empty() { Some(below) } else { below.strip_prefix('.').filter(|below| !below.is_empty()) }
}

/// Value at a path such as `outer.inner`, whose components may contain dots themselves; the value itself for the
/// empty path.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    if path.is_empty() {
        return Some(value);
    }
    let fields = value.as_object()?;
    let below = |(dot, _): (usize, &str)| at(fields.get(&path[..dot])?, &path[dot + 1..]);
    fields.get(path).or_else(|| path.match_indices('.').find_map(below))
}

/// Value of a column: strings unchanged, everything else as JSON.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Collects the paths of nested text fields of a line.
fn nested_names(line: &[u8], names: &mut BTreeSet<String>) {
    fn add(value: &Value, path: &str, names: &mut BTreeSet<String>) {
        for (name, inner) in value.as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            match inner {
                Value::String(_) if names.len() < NAMES => drop(names.insert(path)),
                inner => add(inner, &path, names),
            }
        }
    }
    let fields: serde_json::Map<String, Value> = serde_json::from_slice(line).unwrap_or_default();
    fields.iter().for_each(|(name, value)| add(value, name, names));
}
