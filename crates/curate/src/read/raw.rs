//! Files as sequences of [`RawRecord`]s: the first step of a pipeline.
//!
//! [`input_files`] lists the files in an order that depends only on names; each is opened independently, so that
//! files can be distributed among threads and machines. Documents of a [`named`](named_files) input are named after
//! that name and their path below it, wherever it lies; others are named after the path as written.

use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::sync::Arc;

use fathom_base::secrets::redacted;

use super::access::{Access, OnRead, OpenFile};
use super::blocks::Blocks;
use super::charset::Charset;
use super::common_crawl::Snapshot;
use super::packed::Expansion;
use super::record::RawRecord;
use super::records::{NoField, Records, Step};
use super::remote::{Remote, RemoteOptions, is_remote, list, refuse_secrets};
use super::{How, parquet, stream_records, text};
use crate::counters::Counters;
use crate::error::Error;
use crate::files::{Entry, Links, below_of};
use crate::kinds::{Format, Kind};

/// Reader options for raw records.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawOptions {
    /// JSON field or Parquet column that holds the text; a nested column is named `outer.inner`.
    pub field: String,
    /// Further string fields or columns to return with each record, if present.
    pub columns: Vec<String>,
    /// Format of files whose names do not determine it.
    pub format: Format,
    /// Treatment of text that is not UTF-8.
    pub charset: Charset,
    /// Maximum bytes of a record. Bounds the memory of a reader.
    pub max_document_bytes: usize,
    /// Follows links that lead out of a folder.
    pub follow_links: bool,
    /// Maximum zstd window, as a power of two; its memory comes on top. `zstd --long=31` needs 31.
    pub window_log: u32,
    /// Options of `https://` and `s3://` locations.
    pub remote: RemoteOptions,
}

impl Default for RawOptions {
    fn default() -> Self {
        RawOptions {
            field: "text".to_string(),
            columns: Vec::new(),
            format: Format::Auto,
            charset: Charset::Detect,
            max_document_bytes: 32 << 20,
            follow_links: false,
            window_log: Expansion::default().window_log,
            remote: RemoteOptions::default(),
        }
    }
}

/// One readable input file.
#[derive(Clone, Debug)]
pub struct InputFile {
    name: String,
    /// Path or address, for messages.
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

/// Lists the files denoted by `locations`: paths of files and folders, `https://` files, `s3://` files and prefixes
/// that end with `/`. Folders are walked in name order, files without a reader are counted.
///
/// # Errors
/// [`Error::Read`] and [`Error::Remote`] if a location cannot be listed, [`Error::UnknownExtension`] for a named file
/// without a reader.
pub fn input_files(locations: &[String], options: &RawOptions) -> Result<(Vec<InputFile>, Counters), Error> {
    let (mut files, mut counters) = (Vec::new(), Counters::default());
    for location in locations {
        list_files(location, &|written, _| written.to_string(), options, &mut files, &mut counters)?;
    }
    Ok((files, counters))
}

/// Like [`input_files`] for one location, with location-independent names: `source/path below the folder`, or
/// `source/file name` for a single file.
///
/// # Errors
/// Same as [`input_files`].
pub fn named_files(
    source: &str,
    location: &str,
    options: &RawOptions,
) -> Result<(Vec<InputFile>, Counters), Error> {
    let (mut files, mut counters) = (Vec::new(), Counters::default());
    list_files(location, &|_, below| format!("{source}/{below}"), options, &mut files, &mut counters)?;
    Ok((files, counters))
}

/// Selected files of a crawl, with location-independent names.
pub(crate) fn snapshot_files(
    snapshot: &Snapshot,
    options: &RawOptions,
) -> Result<(Vec<InputFile>, Counters), Error> {
    let (mut files, mut counters) = (Vec::new(), Counters::default());
    for location in snapshot.locations(&options.remote)? {
        let name = snapshot.name_of(&location)?;
        list_files(&location, &|_, _| name.clone(), options, &mut files, &mut counters)?;
    }
    Ok((files, counters))
}

/// Lists one location; `name_of` derives the name of a file from its path or address and its path below the location.
fn list_files(
    location: &str,
    name_of: &dyn Fn(&str, &str) -> String,
    options: &RawOptions,
    files: &mut Vec<InputFile>,
    counters: &mut Counters,
) -> Result<(), Error> {
    let kind_of = |name: &str| options.format.kind(name.as_ref());
    let unknown = |name: &str| Error::UnknownExtension { path: PathBuf::from(&*redacted(name)) };
    let mut add = |at: String, below: &str, place: Place, kind: Kind, bytes: Option<u64>| {
        files.push(InputFile { name: name_of(&at, below), location: at.into(), place, kind, bytes });
    };
    if is_remote(location) {
        refuse_secrets(location)?;
        let whole_prefix = location.ends_with('/');
        let found = if whole_prefix {
            list(location, &options.remote)?.into_iter().map(|(at, bytes)| (at, Some(bytes))).collect()
        } else {
            vec![(location.to_string(), None)]
        };
        for (at, bytes) in found {
            let below = at.strip_prefix(location).filter(|below| !below.is_empty());
            let below = below.unwrap_or_else(|| last_part(&at)).to_string();
            match kind_of(&at) {
                Some(kind) => add(at, &below, Place::Remote, kind, bytes),
                None if whole_prefix => counters.without_reader(at.as_ref(), bytes.unwrap_or(0)),
                None => return Err(unknown(&at)),
            }
        }
        return Ok(());
    }
    let path = PathBuf::from(location);
    let links = if options.follow_links { Links::Anywhere } else { Links::Within };
    let metadata = std::fs::metadata(&path).map_err(|e| Error::read(&path, e))?;
    if metadata.is_dir() {
        for file in below_of(&path, links, |_| false, |path| options.format.kind(path), counters)? {
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

/// Part of an address after the last `/`.
fn last_part(address: &str) -> &str {
    address.rsplit('/').next().unwrap_or(address)
}

impl InputFile {
    /// A local file that was already selected.
    pub(crate) fn of(entry: Entry) -> InputFile {
        let Entry { path, name, kind, bytes, .. } = entry;
        let location = path.display().to_string().into();
        InputFile { name, location, place: Place::Local(path), kind, bytes: Some(bytes) }
    }

    /// Name of its documents, the part of every `id` before `#`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path or address that it is read from.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Size in bytes, if known without asking a server.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Remote`], [`Error::BadFile`] and [`Error::NoTextColumn`] if it cannot be opened,
    /// [`Error::Unavailable`] if the failure is transient.
    pub fn open(&self, options: &RawOptions) -> Result<RawRecords, Error> {
        self.open_asking(options, None)
    }

    /// Like [`open`](InputFile::open), calling `on_read` before every access.
    pub(crate) fn open_asking(
        &self,
        options: &RawOptions,
        on_read: Option<OnRead>,
    ) -> Result<RawRecords, Error> {
        let access = Access::new(&self.location, on_read);
        let limit = options.max_document_bytes.max(1);
        let (field, columns) = (options.field.as_str(), options.columns.as_slice());
        let records: Box<dyn Records> = match &self.place {
            Place::Local(path) => {
                let file = access.open(path)?;
                if self.kind == Kind::Parquet {
                    Box::new(parquet::Rows::open(path, file.seekable(), field, columns, limit)?)
                } else {
                    self.stream(Box::new(file), options)
                }
            }
            Place::Remote if self.kind == Kind::Parquet => {
                let file = access.watch(Blocks::open(&self.location, &options.remote)?).seekable();
                Box::new(parquet::Rows::open((*self.location).as_ref(), file, field, columns, limit)?)
            }
            Place::Remote => {
                let remote = Remote::open(&self.location, &options.remote)?;
                self.stream(Box::new(access.watch(remote)), options)
            }
        };
        Ok(self.records(OpenFile::new(records, access)))
    }

    /// Reads the records of `input` as if it were a file of this name, for data that is not in a file. Not possible
    /// for Parquet.
    ///
    /// # Errors
    /// [`Error::UnknownExtension`] for a name without a reader, including `.parquet`.
    pub fn read_from(
        name: &str,
        input: Box<dyn Read + Send>,
        options: &RawOptions,
    ) -> Result<RawRecords, Error> {
        let kind = options.format.kind(name.as_ref()).filter(|kind| *kind != Kind::Parquet);
        let kind = kind.ok_or_else(|| Error::UnknownExtension { path: PathBuf::from(name) })?;
        let (place, location) = (Place::Remote, Arc::from(name));
        let file = InputFile { name: name.to_string(), location, place, kind, bytes: None };
        let access = Access::new(name, None);
        let records = file.stream(Box::new(access.watch(input)), options);
        Ok(file.records(OpenFile::new(records, access)))
    }

    fn records(&self, records: OpenFile) -> RawRecords {
        let (name, location) = (self.name.clone(), self.location.clone());
        RawRecords { name, location, records, counters: Counters::default(), ended: false }
    }

    fn stream(&self, input: Box<dyn Read + Send>, options: &RawOptions) -> Box<dyn Records> {
        let limit = options.max_document_bytes.max(1);
        let expansion = Expansion { window_log: options.window_log, ..Expansion::default() };
        let how = How { field: &options.field, columns: &options.columns, limit, expansion };
        match self.kind {
            Kind::Html(codec) => Box::new(text::Page::raw(how.unpacked(input, codec), limit)),
            Kind::Text(codec) if options.charset == Charset::Detect => {
                Box::new(text::TextParts::detecting(how.unpacked(input, codec), limit))
            }
            kind => stream_records(kind, input, &how),
        }
    }
}

/// Iterator over the records of one file, with one in memory at a time.
///
/// Damaged records are counted; the iterator yields an error only if the file itself can no longer be read, and then
/// ends. The error is [`Error::Unavailable`] if a later attempt may succeed.
pub struct RawRecords {
    name: String,
    location: Arc<str>,
    records: OpenFile,
    counters: Counters,
    ended: bool,
}

impl RawRecords {
    /// Path or address of the file.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Counters of records returned and lost so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Iterator for RawRecords {
    type Item = Result<RawRecord, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let step = match self.records.step() {
                Ok(step) => step,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            };
            match step {
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
                    // Memory for a zstd window; all other transient errors were reported where the file is read.
                    if source.kind() == ErrorKind::OutOfMemory {
                        return Some(Err(Error::access(&self.location, None, source)));
                    }
                    return Some(Err(Error::read((*self.location).as_ref(), source)));
                }
                Step::End => {
                    self.ended = true;
                    if let Some(NoField { problem, names: columns }) = self.records.no_field() {
                        let path = PathBuf::from(&*self.location);
                        return Some(Err(Error::NoTextColumn { path, problem, columns }));
                    }
                }
            }
        }
        None
    }
}
