//! Rows of a file: JSON lines or one JSON array, possibly compressed, or a Parquet table.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use fathom_base::guard;
use parquet::file::reader::SerializedFileReader;
use parquet::record::Field;
use parquet::record::reader::RowIter;
use serde_json::Value;

use crate::error::{Error, OrIo, Result};

/// Keys of which a lesson has at least one.
const KEYS: [&str; 5] = ["input_ids", "completion", "output", "messages", "conversations"];
/// Maximum bytes of a row. Parsed JSON takes up to thirty times its text.
const LONGEST: u64 = 64 << 20;
/// Written at the start of UTF-8 files by Windows editors.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Iterator over the rows of a file.
pub struct Rows {
    path: PathBuf,
    line: u64,
    from: From,
    /// Set after the last row, and after an error of the file itself, which would otherwise recur at every call.
    ended: bool,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("path", &self.path).field("line", &self.line).finish_non_exhaustive()
    }
}

enum From {
    Lines(Box<dyn BufRead + Send>),
    /// Positioned after the `[`.
    Array(Box<dyn BufRead + Send>),
    Table(parquet::record::reader::RowIter<'static>),
}

impl Rows {
    /// Opens a file. `.gz` and `.zst` files are decompressed, `.parquet` files are read as Parquet.
    ///
    /// # Errors
    /// The file cannot be read, or is a broken Parquet file.
    pub fn open(path: &Path) -> Result<Rows> {
        let rows = |from| Ok(Rows { path: path.to_owned(), line: 0, from, ended: false });
        if ends(path, "parquet") {
            let file = File::open(path).or_io("open", path)?;
            let opened = SerializedFileReader::new(file).map(|file| RowIter::from_file_into(Box::new(file)));
            return rows(From::Table(
                opened.map_err(|error| broken(path, 0, format!("is no Parquet: {error}")))?,
            ));
        }
        let mut file = text(path).or_io("open", path)?;
        let start = file.fill_buf().or_io("read", path)?;
        if start.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
            return rows(From::Lines(file));
        }
        next_sign(&mut *file).or_io("read", path)?;
        file.consume(1);
        rows(From::Array(file))
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Line of the last row, from 1; in an array, its number.
    pub fn line(&self) -> u64 {
        self.line
    }
}

impl Iterator for Rows {
    type Item = Result<Value>;

    /// Returns the next row, skipping empty lines. An error of the file itself is the last item.
    fn next(&mut self) -> Option<Result<Value>> {
        if self.ended {
            return None;
        }
        self.line += 1;
        let row = match &mut self.from {
            From::Array(file) => element(&mut **file, self.line == 1, &self.path, self.line).transpose(),
            From::Table(rows) => table_row(rows, &self.path, self.line),
            From::Lines(_) => self.next_line(),
        };
        let is_row = |error: &Error| matches!((error, &self.from), (Error::Row { .. }, From::Lines(_)));
        self.ended = row.as_ref().is_none_or(|row| row.as_ref().is_err_and(|error| !is_row(error)));
        row
    }
}

impl Rows {
    fn next_line(&mut self) -> Option<Result<Value>> {
        let Rows { path, line, from: From::Lines(lines), .. } = self else { return None };
        loop {
            let mut text = Vec::new();
            match lines.by_ref().take(LONGEST).read_until(b'\n', &mut text).or_io("read", path) {
                Ok(0) => return None,
                Ok(read) if read as u64 == LONGEST && !text.ends_with(b"\n") => {
                    let rest = lines.skip_until(b'\n').or_io("read", path);
                    return Some(rest.and_then(|_| Err(too_long(path, *line))));
                }
                Ok(_) if text.trim_ascii().is_empty() => *line += 1,
                Ok(_) => {
                    let row = serde_json::from_slice(&text);
                    return Some(row.map_err(|error| broken(path, *line, format!("is no JSON: {error}"))));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Next element of an array, which is a row; `None` after the last.
fn element(file: &mut (dyn BufRead + Send), first: bool, path: &Path, line: u64) -> Result<Option<Value>> {
    let no_json = |reason: &str| broken(path, line, format!("is no JSON: {reason}"));
    match next_sign(file).or_io("read", path)? {
        Some(b']') => {
            file.consume(1);
            return match next_sign(file).or_io("read", path)? {
                None => Ok(None),
                Some(_) => Err(no_json("there is more behind the end of the array")),
            };
        }
        Some(b',') if !first => file.consume(1),
        Some(_) if first => {}
        Some(_) => return Err(no_json("a `,` is missing in front of it")),
        None => return Err(no_json("the file ends inside the array")),
    }
    if next_sign(file).or_io("read", path)? != Some(b'{') {
        return Err(broken(path, line, "is no JSON object".to_owned()));
    }
    let mut row = file.take(LONGEST);
    let parsed = serde_json::Deserializer::from_reader(&mut row).into_iter().next().transpose();
    parsed.map_err(|error| match row.limit() {
        0 => too_long(path, line),
        _ => no_json(&error.to_string()),
    })
}

/// Next byte that is not white space, without consuming it.
fn next_sign(file: &mut (dyn BufRead + Send)) -> std::io::Result<Option<u8>> {
    loop {
        match file.fill_buf()?.first() {
            Some(byte) if byte.is_ascii_whitespace() => file.consume(1),
            other => return Ok(other.copied()),
        }
    }
}

/// Next row of a table. The decoder reports most damage as an error, but some by a panic.
fn table_row(rows: &mut RowIter<'static>, path: &Path, line: u64) -> Option<Result<Value>> {
    let row = match guard::guarded(|| rows.next()) {
        Ok(row) => row?.map_err(|error| error.to_string()),
        Err(_) => Err("the decoder panicked on it".to_string()),
    };
    let row = row.map(|row| object(row.get_column_iter()));
    Some(row.map_err(|error| broken(path, line, format!("cannot be read, nor what follows it: {error}"))))
}

fn too_long(path: &Path, line: u64) -> Error {
    broken(path, line, format!("is longer than {LONGEST} bytes; split the row"))
}

fn broken(path: &Path, line: u64, reason: String) -> Error {
    Error::Row { path: path.to_owned(), line, reason }
}

/// Opens a file for reading, decompressing according to its extension.
fn text(path: &Path) -> std::io::Result<Box<dyn BufRead + Send>> {
    let file = File::open(path)?;
    let mut text: Box<dyn BufRead + Send> = match () {
        () if ends(path, "gz") => Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(file))),
        () if ends(path, "zst") => Box::new(BufReader::new(zstd::Decoder::new(file)?)),
        () => Box::new(BufReader::new(file)),
    };
    if text.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        text.consume(BYTE_ORDER_MARK.len());
    }
    Ok(text)
}

/// Columns of a row. Null columns are left out, since a table has a column for every key that occurs in any row.
fn object<'r>(columns: impl Iterator<Item = (&'r String, &'r Field)>) -> Value {
    let there = columns.filter(|(_, field)| !matches!(field, Field::Null));
    Value::Object(there.map(|(name, field)| (name.clone(), json(field))).collect())
}

fn json(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(x) => (*x).into(),
        Field::Byte(x) => (*x).into(),
        Field::Short(x) => (*x).into(),
        Field::Int(x) => (*x).into(),
        Field::Long(x) => (*x).into(),
        Field::UByte(x) => (*x).into(),
        Field::UShort(x) => (*x).into(),
        Field::UInt(x) => (*x).into(),
        Field::ULong(x) => (*x).into(),
        Field::Float(x) => (*x).into(),
        Field::Double(x) => (*x).into(),
        Field::Str(x) => x.as_str().into(),
        Field::Group(row) => object(row.get_column_iter()),
        Field::ListInternal(list) => list.elements().iter().map(json).collect(),
        Field::MapInternal(map) => {
            let name = |key: &Field| match key {
                Field::Str(key) => key.clone(),
                other => other.to_string(),
            };
            Value::Object(map.entries().iter().map(|(key, value)| (name(key), json(value))).collect())
        }
        // Dates, decimals and bytes in Parquet's text form.
        other => other.to_string().into(),
    }
}

fn ends(path: &Path, with: &str) -> bool {
    path.extension().is_some_and(|extension| extension == with)
}

/// Returns true if a file's name indicates that it contains rows.
pub fn has_rows(path: &Path) -> bool {
    let packed = ends(path, "gz") || ends(path, "zst");
    let inner = if packed { path.with_extension("") } else { path.to_owned() };
    ends(&inner, "jsonl") || ends(&inner, "json") || ends(path, "parquet")
}

/// Returns true if a file contains lessons rather than texts: by its name, and by the keys of its first row, which
/// must lack `text_field`. Returns false for an unreadable file. Reads no more than that row.
pub fn is_lesson_file(path: &Path, text_field: &str) -> bool {
    let is_lesson =
        |row: Value| row.get(text_field).is_none() && KEYS.iter().any(|key| row.get(*key).is_some());
    has_rows(path) && path.is_file() && first_row(path).is_some_and(is_lesson)
}

/// First row of a file; `None` if it cannot be read.
fn first_row(path: &Path) -> Option<Value> {
    if ends(path, "parquet") {
        return Rows::open(path).ok()?.next()?.ok();
    }
    let mut file = text(path).ok()?;
    loop {
        let byte = *file.fill_buf().ok()?.first()?;
        if byte == b'[' || byte.is_ascii_whitespace() {
            file.consume(1);
        } else {
            return serde_json::Deserializer::from_reader(file.take(LONGEST)).into_iter().next()?.ok();
        }
    }
}
