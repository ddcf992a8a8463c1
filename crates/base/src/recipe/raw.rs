//! TOML text as a tree of values with line numbers, before any schema is applied.

use toml::de::{DeTable, DeValue};

use super::source::Origin;
use crate::error::{Error, Result};
use crate::secrets::redacted;

/// A value and its one-based line.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub line: usize,
    pub value: RawValue,
}

/// A value as written.
#[derive(Clone, Debug)]
pub(crate) enum RawValue {
    /// Any value except a list or a table.
    Scalar(toml::Value),
    List(Vec<Raw>),
    /// Entries in line order, so that the first mistake of a file is reported first.
    Table(Vec<(String, Raw)>),
}

impl Raw {
    /// Reads a whole TOML text.
    pub fn parse(text: &str, origin: &Origin) -> Result<Vec<(String, Raw)>> {
        let lines = Lines::of(text);
        let table = DeTable::parse(text).map_err(|error| toml_error(&error, text, &lines, origin))?;
        convert_table(table.get_ref(), &lines).map_err(|(line, message)| Error::Toml {
            place: origin.place(line),
            message,
            snippet: String::new(),
        })
    }

    /// Reads one TOML value; `None` if the text is not one.
    pub fn parse_value(text: &str) -> Option<Raw> {
        let value = DeValue::parse(text).ok()?;
        convert(value.get_ref(), 1, &Lines::of("")).ok()
    }

    /// Returns the text if the value is text.
    pub fn into_text(self) -> Option<String> {
        match self.value {
            RawValue::Scalar(toml::Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Converts to a plain TOML value.
    pub fn to_value(&self) -> toml::Value {
        match &self.value {
            RawValue::Scalar(value) => value.clone(),
            RawValue::List(items) => toml::Value::Array(items.iter().map(Raw::to_value).collect()),
            RawValue::Table(entries) => {
                toml::Value::Table(entries.iter().map(|(k, v)| (k.clone(), v.to_value())).collect())
            }
        }
    }

    /// Describes the kind of the value in words, with the value itself if it is short.
    pub fn describe(&self) -> String {
        let kind = match &self.value {
            RawValue::Scalar(value) => match value {
                toml::Value::String(_) => "the text",
                toml::Value::Integer(_) => "the whole number",
                toml::Value::Float(_) => "the number",
                toml::Value::Boolean(_) => "the switch",
                _ => "the date",
            },
            RawValue::List(_) => return "a list".into(),
            RawValue::Table(_) => return "a table".into(),
        };
        format!("{kind} {}", shorten(&self.to_value().to_string()))
    }
}

/// Shortens a text to at most sixty characters and hides its secrets.
pub(crate) fn shorten(text: &str) -> String {
    let text = redacted(text);
    if text.chars().count() <= 60 {
        return text.into_owned();
    }
    format!("{}...", text.chars().take(57).collect::<String>())
}

fn toml_error(error: &toml::de::Error, text: &str, lines: &Lines, origin: &Origin) -> Error {
    let offset = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = lines.line(offset);
    let source_line = text.lines().nth(line - 1).unwrap_or("");
    let before = text.get(lines.starts[line - 1]..offset).unwrap_or("").chars().count();
    let snippet = if source_line.is_empty() || before > 100 {
        String::new()
    } else {
        format!("\n  {}\n  {}^", shorten_line(source_line), " ".repeat(before))
    };
    Error::Toml { place: origin.place(line), message: error.message().to_string(), snippet }
}

fn shorten_line(line: &str) -> String {
    redacted(line).chars().take(120).collect()
}

type LineError = (usize, String);

fn convert_table(table: &DeTable<'_>, lines: &Lines) -> std::result::Result<Vec<(String, Raw)>, LineError> {
    let mut out = Vec::with_capacity(table.len());
    for (key, value) in table {
        let line = lines.line(key.span().start);
        out.push((key.get_ref().to_string(), convert(value.get_ref(), line, lines)?));
    }
    out.sort_by_key(|(_, raw)| raw.line);
    Ok(out)
}

fn convert(value: &DeValue<'_>, line: usize, lines: &Lines) -> std::result::Result<Raw, LineError> {
    let scalar = match value {
        DeValue::String(text) => toml::Value::String(text.to_string()),
        DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix())
            .map(toml::Value::Integer)
            .map_err(|_| (line, format!("the whole number {n} does not fit 64 bits")))?,
        DeValue::Float(x) => x
            .as_str()
            .parse()
            .map(toml::Value::Float)
            .map_err(|_| (line, format!("`{}` is not a number", x.as_str())))?,
        DeValue::Boolean(on) => toml::Value::Boolean(*on),
        DeValue::Datetime(date) => toml::Value::Datetime(*date),
        DeValue::Array(items) => {
            let at = |item: &toml::Spanned<DeValue<'_>>| match lines.starts.len() {
                1 => line,
                _ => lines.line(item.span().start),
            };
            let items = items.iter().map(|item| convert(item.get_ref(), at(item), lines));
            return Ok(Raw { line, value: RawValue::List(items.collect::<std::result::Result<_, _>>()?) });
        }
        DeValue::Table(table) => {
            let entries = convert_table(table, lines)?;
            let line = entries.first().map_or(line, |(_, raw)| raw.line.min(line));
            return Ok(Raw { line, value: RawValue::Table(entries) });
        }
    };
    Ok(Raw { line, value: RawValue::Scalar(scalar) })
}

/// Byte offsets of line starts.
struct Lines {
    starts: Vec<usize>,
}

impl Lines {
    fn of(text: &str) -> Lines {
        let after = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        Lines { starts: std::iter::once(0).chain(after).collect() }
    }

    /// One-based line of a byte offset.
    fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset).max(1)
    }
}
