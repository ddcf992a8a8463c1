//! Files as rows of [`RawRecord`]s: the beginning of a pipeline.
//!
//! [`input_files`] says which files there are, in an order that only names decide; each opens on its own, so that files can
//! be shared out among threads and machines. Documents of a [`named`](named_files) input are called after that name and
//! the place below it, wherever it lies; those of another are called after the path as it was written.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use super::record::RawRecord;
use super::remote::{Remote, RemoteOptions, is_remote, list};
use super::{Records, Step, parquet, stream_records, text};
use crate::counters::{Counters, Reason};
use crate::error::Error;
use crate::files::{Kind, below_of};

/// How raw records are read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawOptions {
    /// The field (JSON) or column (Parquet) that holds the text; a nested column is named `outer.inner`.
    pub field: String,
    /// Further fields or columns of strings to hand out with each record, where they are there.
    pub columns: Vec<String>,
    /// Bytes of the largest record. It bounds the memory of a reader.
    pub max_document_bytes: usize,
    /// For locations with `https://` and `s3://`.
    pub remote: RemoteOptions,
}

impl Default for RawOptions {
    fn default() -> Self {
        let remote = RemoteOptions::default();
        RawOptions { field: "text".to_string(), columns: Vec::new(), max_document_bytes: 32 << 20, remote }
    }
}

/// One file that can be read.
#[derive(Clone, Debug)]
pub struct InputFile {
    name: String,
    /// The path or address, for messages.
    location: Arc<str>,
    place: Place,
    kind: Kind,
    bytes: Option<u64>,
}

#[derive(Clone, Debug)]
enum Place {
    Local(PathBuf),
    Remote,
}

/// The files that `locations` stand for: paths of files and folders, `https://` files, `s3://` files and prefixes that end
/// with `/`. Folders are walked in the order of names, files without a reader are counted.
///
/// # Errors
/// [`Error::Read`] and [`Error::Remote`] for what cannot be listed, [`Error::UnknownExtension`] for a named file without
/// a reader.
pub fn input_files(locations: &[String], options: &RawOptions) -> Result<(Vec<InputFile>, Counters), Error> {
    let (mut files, mut counters) = (Vec::new(), Counters::default());
    for location in locations {
        list_files(location, &|written, _| written.to_string(), options, &mut files, &mut counters)?;
    }
    Ok((files, counters))
}

/// Like [`input_files`] for one location, with names that do not depend on where it lies: `source/path below the folder`,
/// or `source/file name` where the location is a single file.
///
/// # Errors
/// Those of [`input_files`].
pub fn named_files(
    source: &str,
    location: &str,
    options: &RawOptions,
) -> Result<(Vec<InputFile>, Counters), Error> {
    let (mut files, mut counters) = (Vec::new(), Counters::default());
    list_files(location, &|_, below| format!("{source}/{below}"), options, &mut files, &mut counters)?;
    Ok((files, counters))
}

/// Lists one location; `name_of` makes the name of a file from its path or address and from its path below the location.
fn list_files(
    location: &str,
    name_of: &dyn Fn(&str, &str) -> String,
    options: &RawOptions,
    files: &mut Vec<InputFile>,
    counters: &mut Counters,
) -> Result<(), Error> {
    let kind_of = |name: &str| Kind::of_any(name.as_ref());
    let unknown = |name: &str| Error::UnknownExtension { path: PathBuf::from(name) };
    let mut add = |at: String, below: &str, place: Place, kind: Kind, bytes: Option<u64>| {
        files.push(InputFile { name: name_of(&at, below), location: at.into(), place, kind, bytes });
    };
    if is_remote(location) {
        let whole_prefix = location.ends_with('/');
        let found = if whole_prefix { list(location, &options.remote)? } else { vec![location.to_string()] };
        for at in found {
            let below = at.strip_prefix(location).filter(|below| !below.is_empty());
            let below = below.unwrap_or_else(|| last_part(&at)).to_string();
            match kind_of(&at) {
                Some(kind) => add(at, &below, Place::Remote, kind, None),
                None if whole_prefix => counters.drop_documents(Reason::NoReader, 1, 0),
                None => return Err(unknown(&at)),
            }
        }
        return Ok(());
    }
    let path = PathBuf::from(location);
    let metadata = std::fs::metadata(&path).map_err(|e| Error::read(&path, e))?;
    if metadata.is_dir() {
        for file in below_of(&path, true, |_| false, Kind::of_any, counters)? {
            let at = path.join(&file.relative).display().to_string();
            add(at, &file.relative, Place::Local(file.path), file.kind, Some(file.bytes));
        }
    } else {
        let kind = kind_of(location).ok_or_else(|| unknown(location))?;
        let below = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        add(location.to_string(), &below, Place::Local(path), kind, Some(metadata.len()));
    }
    Ok(())
}

/// What stands behind the last `/` of an address.
fn last_part(address: &str) -> &str {
    address.rsplit('/').next().unwrap_or(address)
}

impl InputFile {
    /// What its documents are called, the part of every `id` before `#`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path or address that it is read from.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The size, where it is known without asking a server.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Remote`], [`Error::BadFile`] and [`Error::NoTextColumn`] where it cannot be opened.
    pub fn open(&self, options: &RawOptions) -> Result<RawRecords, Error> {
        let limit = options.max_document_bytes.max(1);
        let (field, columns) = (options.field.as_str(), options.columns.as_slice());
        let records = match &self.place {
            Place::Local(path) => {
                let file = File::open(path).map_err(|e| Error::read(path, e))?;
                if self.kind == Kind::Parquet {
                    Box::new(parquet::Rows::open(path, file, field, columns, limit)?)
                } else {
                    self.stream(Box::new(file), options)
                }
            }
            Place::Remote if self.kind == Kind::Parquet => {
                return Err(Error::Remote {
                    location: self.location.to_string(),
                    detail: "Parquet needs random access".to_string(),
                    advice: "download the file and name its path".to_string(),
                });
            }
            Place::Remote => self.stream(Box::new(Remote::open(&self.location, &options.remote)?), options),
        };
        Ok(self.records(records))
    }

    /// The records of `input` as if it were a file of this name; for what does not lie in a file. Parquet needs one.
    ///
    /// # Errors
    /// [`Error::UnknownExtension`] for a name without a reader, also `.parquet`.
    pub fn read_from(
        name: &str,
        input: Box<dyn Read + Send>,
        options: &RawOptions,
    ) -> Result<RawRecords, Error> {
        let kind = Kind::of_any(name.as_ref()).filter(|kind| *kind != Kind::Parquet);
        let kind = kind.ok_or_else(|| Error::UnknownExtension { path: PathBuf::from(name) })?;
        let (place, location) = (Place::Remote, Arc::from(name));
        let file = InputFile { name: name.to_string(), location, place, kind, bytes: None };
        Ok(file.records(file.stream(input, options)))
    }

    fn records(&self, records: Box<dyn Records>) -> RawRecords {
        let (name, location) = (self.name.clone(), self.location.clone());
        RawRecords { name, location, records, counters: Counters::default(), ended: false }
    }

    fn stream(&self, input: Box<dyn Read + Send>, options: &RawOptions) -> Box<dyn Records> {
        let limit = options.max_document_bytes.max(1);
        match self.kind {
            Kind::Html => Box::new(text::Page::raw(input, limit)),
            kind => stream_records(kind, input, &options.field, &options.columns, limit),
        }
    }
}

/// The records of one file, one in memory at a time.
///
/// Damaged records are counted; the iterator gives an error only where the file itself can no longer be read, and ends
/// behind it.
pub struct RawRecords {
    name: String,
    location: Arc<str>,
    records: Box<dyn Records>,
    counters: Counters,
    ended: bool,
}

impl RawRecords {
    /// The path or address of the file.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// What was handed on and what was lost so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Iterator for RawRecords {
    type Item = Result<RawRecord, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.records.step() {
                Step::Record(raw) => {
                    self.counters.read_documents += 1;
                    self.counters.read_bytes += raw.content.len() as u64;
                    let id = match raw.number {
                        Some(number) => format!("{}#{number}", self.name),
                        None => self.name.clone(),
                    };
                    let location = self.location.clone();
                    return Some(Ok(RawRecord { id, location, content: raw.content, columns: raw.columns }));
                }
                Step::Lost(loss) => loss.count(&self.location, &mut self.counters),
                Step::Failed(source) => {
                    self.ended = true;
                    return Some(Err(Error::read((*self.location).as_ref(), source)));
                }
                Step::End => self.ended = true,
            }
        }
        None
    }
}
