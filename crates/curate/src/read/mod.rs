//! Readers: every kind of file becomes a stream of records, and every record a [`Document`] or a count.

mod access;
mod arxiv;
#[cfg(feature = "pipeline")]
mod blocks;
mod charset;
mod columns;
#[cfg(feature = "pipeline")]
mod common_crawl;
#[cfg(feature = "pipeline")]
mod fetched;
mod html;
mod http;
mod jsonl;
pub(crate) mod lenient;
pub(crate) mod packed;
mod parquet;
#[cfg(feature = "pipeline")]
mod raw;
mod record;
mod records;
#[cfg(feature = "pipeline")]
mod remote;
mod tarball;
mod text;
mod warc;
mod wiki;

use std::io::Read;
use std::path::PathBuf;

use crate::counters::{Counters, Damage, Reason};
use crate::document::{Document, group_of};
use crate::error::Error;
use crate::files::{Entry, Links, below, list_of};
use crate::kinds::Kind;
use fathom_prose::extract::Extraction;

#[cfg(feature = "pipeline")]
pub use access::OnRead;
pub use charset::Charset;
#[cfg(feature = "pipeline")]
pub use common_crawl::{CrawlFiles, Snapshot};
#[cfg(feature = "pipeline")]
pub use fetched::{fetch, remote_files};
pub use html::html_to_text;
#[cfg(feature = "pipeline")]
pub(crate) use raw::snapshot_files;
#[cfg(feature = "pipeline")]
pub use raw::{InputFile, RawOptions, RawRecords, input_files, named_files};
pub use record::{Columns, RawRecord};
#[cfg(feature = "pipeline")]
pub(crate) use remote::NO_SECRETS;
#[cfg(feature = "pipeline")]
pub use remote::{RemoteOptions, is_remote};

use access::{Access, OpenFile};
use packed::{Codec, Decompressor, Expansion};
use records::{Raw, Records, Step};

/// Reader options for the user's own data.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// JSON field or Parquet column that holds the text; a nested column is named `outer.inner`.
    pub field: String,
    /// Maximum record size in bytes: longer text files are split at line ends into several documents, longer lines,
    /// rows and pages are dropped and counted. Bounds the memory of a reader.
    pub max_document_bytes: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { field: "text".to_string(), max_document_bytes: 32 << 20 }
    }
}

/// Iterator over the documents of a corpus in order, with one record in memory at a time.
///
/// Yields an error if a path named by the user fails, if a file cannot be read for a transient reason
/// ([`Error::Unavailable`]), or, at its end, if there was no document at all ([`Error::EmptyCorpus`]); the iterator
/// ends after an error.
pub struct Documents {
    looked_at: String,
    num_files: usize,
    files: std::vec::IntoIter<Entry>,
    current: Option<(Entry, OpenFile)>,
    /// Bytes of the current file's records so far.
    given_bytes: u64,
    options: ReadOptions,
    extraction: Extraction,
    screen: fn(&str, &str) -> Option<Reason>,
    counters: Counters,
    ended: bool,
}

/// Opens the named files, and all readable files below the named folders except hidden ones and links out of the
/// folder.
///
/// Text files below one named folder form one group, in path order; every record of a JSON lines or Parquet file is
/// its own group, since neighbours in such a file are rarely related.
///
/// # Errors
/// [`Error::Read`] for a path that does not exist or a folder that cannot be listed,
/// [`Error::UnknownExtension`] for a named file without a reader.
pub fn open(paths: &[PathBuf], options: &ReadOptions) -> Result<Documents, Error> {
    let mut counters = Counters::default();
    let mut entries = Vec::new();
    for path in paths {
        let metadata = std::fs::metadata(path).map_err(|e| Error::read(path, e))?;
        let name = path.display().to_string();
        let group = group_of(&name);
        if metadata.is_dir() {
            for file in below(path, Links::Within, |_| false, &mut counters)? {
                let name = path.join(&file.relative).display().to_string();
                entries.push(Entry {
                    path: file.path,
                    name,
                    group,
                    kind: file.kind,
                    bytes: file.bytes,
                    named: false,
                });
            }
        } else {
            let kind = Kind::of(path).ok_or_else(|| Error::UnknownExtension { path: path.clone() })?;
            entries.push(Entry { path: path.clone(), name, group, kind, bytes: metadata.len(), named: true });
        }
    }
    Ok(Documents::new(list_of(paths), entries, options.clone(), |_, _| None, counters))
}

impl Documents {
    /// Reads `files` in their order; `screen` may reject a text, given its name and contents.
    pub(crate) fn new(
        looked_at: String,
        files: Vec<Entry>,
        options: ReadOptions,
        screen: fn(&str, &str) -> Option<Reason>,
        counters: Counters,
    ) -> Documents {
        let (num_files, files) = (files.len(), files.into_iter());
        Documents {
            looked_at,
            num_files,
            files,
            current: None,
            given_bytes: 0,
            options,
            extraction: Extraction::default(),
            screen,
            counters,
            ended: false,
        }
    }

    /// Counters of documents passed on and dropped so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Total number of files.
    pub fn num_files(&self) -> usize {
        self.num_files
    }

    /// Unread bytes on disk, of the remaining files and of the current one. Decoders read ahead, so an uncompressed
    /// file counts by the bytes of its returned records.
    pub fn remaining_bytes(&self) -> u64 {
        let at_hand = self.current.as_ref().map_or(0, |(entry, opened)| {
            let done = if entry.kind.is_plain() { self.given_bytes } else { opened.read_bytes() };
            entry.bytes.saturating_sub(done)
        });
        at_hand + self.files.as_slice().iter().map(|f| f.bytes).sum::<u64>()
    }

    /// Files not yet opened.
    pub(crate) fn remaining_files(&self) -> usize {
        self.files.len()
    }

    /// Opens the next file; a failure stops the run only if the user named the file or the failure is transient.
    fn open_next(&mut self) -> Result<bool, Error> {
        for entry in self.files.by_ref() {
            match open_records(&entry, &self.options) {
                Ok(records) => {
                    self.given_bytes = 0;
                    self.current = Some((entry, records));
                    return Ok(true);
                }
                Err(error) => {
                    let Some(reason) = error.reason().filter(|_| !entry.named) else { return Err(error) };
                    let (file, place) = (entry.name, String::new());
                    let damage = Damage { file, place, reason, detail: error.to_string() };
                    self.counters.damaged(damage, 1, entry.bytes);
                }
            }
        }
        Ok(false)
    }

    fn document(&mut self, raw: Raw) -> Option<Document> {
        let (entry, _) = self.current.as_ref()?;
        let (number, bytes) = (raw.number, raw.content.len() as u64);
        let text = match self.extraction.text(raw.content) {
            Ok(extracted) => extracted.text,
            Err(refusal) => {
                self.counters.drop_documents(refusal.into(), 1, bytes);
                return None;
            }
        };
        let blank = text.trim().is_empty().then_some(Reason::Blank);
        if let Some(reason) = blank.or_else(|| (self.screen)(&entry.name, &text)) {
            self.counters.drop_documents(reason, 1, text.len() as u64);
            return None;
        }
        self.counters.keep(&text);
        let source = match number {
            None => entry.name.clone(),
            Some(number) => format!("{}#{number}", entry.name),
        };
        let group = match entry.kind {
            Kind::Text(_) | Kind::Html(_) => entry.group,
            _ => group_of(&source),
        };
        Some(Document { text, source, group })
    }

    /// Returns the next document; `None` at the end of the last file.
    fn advance(&mut self) -> Result<Option<Document>, Error> {
        loop {
            let Some((entry, records)) = &mut self.current else {
                if self.open_next()? {
                    continue;
                }
                return Ok(None);
            };
            match records.step()? {
                Step::Record(raw) => {
                    self.given_bytes += raw.content.len() as u64;
                    if let Some(document) = self.document(raw) {
                        return Ok(Some(document));
                    }
                }
                Step::Lost(loss) => {
                    self.given_bytes += loss.bytes;
                    loss.count(&entry.name, &mut self.counters);
                }
                Step::Failed(error) if entry.named => return Err(Error::read(&entry.path, error)),
                Step::Failed(error) => {
                    let (file, place) = (entry.name.clone(), String::new());
                    let detail = error.to_string();
                    let bytes = entry.bytes;
                    self.counters.damaged(
                        Damage { file, place, reason: Reason::Unreadable, detail },
                        1,
                        bytes,
                    );
                    self.current = None;
                }
                Step::End => self.current = None,
            }
        }
    }

    fn nothing_found(&self) -> Error {
        let first = self.counters.damage.first().map_or(String::new(), |damage| format!(": {damage}"));
        let outcome = format!("{} readable files, {}{first}", self.num_files, self.counters.summary());
        Error::EmptyCorpus { looked_at: self.looked_at.clone(), outcome }
    }
}

impl Iterator for Documents {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.advance() {
            Ok(Some(document)) => Some(Ok(document)),
            Ok(None) => {
                self.ended = true;
                (self.counters.read_documents == 0).then(|| Err(self.nothing_found()))
            }
            Err(error) => {
                self.ended = true;
                Some(Err(error))
            }
        }
    }
}

fn open_records(entry: &Entry, options: &ReadOptions) -> Result<OpenFile, Error> {
    let limit = options.max_document_bytes.max(1);
    let access = Access::new(&entry.path.display().to_string(), None);
    let file = access.open(&entry.path)?;
    let records: Box<dyn Records> = if entry.kind == Kind::Parquet {
        Box::new(parquet::Rows::open(&entry.path, file.seekable(), &options.field, &[], limit)?)
    } else {
        let how = How { limit, ..How::of(&options.field) };
        stream_records(entry.kind, Box::new(file), &how)
    };
    Ok(OpenFile::new(records, access))
}

/// Options of a sequential reader.
struct How<'a> {
    /// Field that holds the text.
    field: &'a str,
    /// Further fields to return.
    columns: &'a [String],
    /// Maximum bytes of a record.
    limit: usize,
    expansion: Expansion,
}

impl How<'_> {
    /// Defaults with this field.
    fn of(field: &str) -> How<'_> {
        How { field, columns: &[], limit: 32 << 20, expansion: Expansion::default() }
    }

    /// Creates a decompressing reader.
    fn packed(&self, input: Box<dyn Read + Send>, codec: Codec) -> Decompressor {
        Decompressor::new(input, codec, self.expansion)
    }

    /// Bytes of a file, decompressed if necessary.
    fn unpacked(&self, input: Box<dyn Read + Send>, codec: Codec) -> Box<dyn Read + Send> {
        match codec {
            Codec::Plain => input,
            codec => Box::new(self.packed(input, codec)),
        }
    }
}

/// Reader of a sequential kind of file, that is, every kind except Parquet.
fn stream_records(kind: Kind, input: Box<dyn Read + Send>, how: &How<'_>) -> Box<dyn Records> {
    let How { field, columns, limit, .. } = *how;
    match kind {
        Kind::Parquet => Box::new(text::TextParts::new(input, limit)),
        Kind::Text(codec) => Box::new(text::TextParts::new(how.unpacked(input, codec), limit)),
        Kind::Html(codec) => Box::new(text::Page::new(how.unpacked(input, codec), limit)),
        Kind::Jsonl(codec) => Box::new(jsonl::Lines::new(how.packed(input, codec), field, columns, limit)),
        Kind::Warc(codec) => Box::new(warc::Warc::new(how.packed(input, codec), limit)),
        Kind::Wiki(codec) => Box::new(wiki::Dump::new(how.packed(input, codec), limit)),
        Kind::Papers(codec) => Box::new(arxiv::Papers::new(how.packed(input, codec), limit)),
    }
}
