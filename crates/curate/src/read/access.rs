//! File access with failure tracking below all decoders, which wrap I/O errors or report them as damage.
//!
//! The first transient failure ([`may_pass`]) is recorded next to the readers. Whatever a decoder makes of it or
//! still returns, [`OpenFile::step`] reports that failure: a file counts as damaged only if its bytes could be read.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::records::{NoField, Records, Step};
use crate::error::{Error, may_pass};

/// Called with the path or address before an input file is opened, and also with the offset before each of its reads.
/// A returned error replaces the call's result, so that tests can simulate a disk that fails once.
pub type OnRead = Arc<dyn Fn(&str, Option<u64>) -> io::Result<()> + Send + Sync>;

/// Access to one file, shared by all its readers.
#[derive(Clone)]
pub(super) struct Access(Arc<AccessState>);

struct AccessState {
    location: String,
    on_read: Option<OnRead>,
    /// Offset and message of the first transient failure.
    failure: OnceLock<(u64, String)>,
    /// Bytes read by all readers.
    read_bytes: AtomicU64,
}

impl Access {
    /// Creates the access to the file with this path or address.
    pub(super) fn new(location: &str, on_read: Option<OnRead>) -> Access {
        let (location, failure) = (location.to_owned(), OnceLock::new());
        Access(Arc::new(AccessState { location, on_read, failure, read_bytes: AtomicU64::new(0) }))
    }

    /// Opens a local file.
    ///
    /// # Errors
    /// [`Error::Read`], or [`Error::Unavailable`] if the failure is transient.
    pub(super) fn open(&self, path: &Path) -> Result<TrackedReader<File>, Error> {
        let opened = self.ask(None).and_then(|()| File::open(path));
        opened.map(|file| self.watch(file)).map_err(|e| Error::access(&self.0.location, None, e))
    }

    /// Watches reads of `inner`, which must be at its beginning.
    pub(super) fn watch<R>(&self, inner: R) -> TrackedReader<R> {
        TrackedReader { inner, offset: 0, access: self.clone() }
    }

    /// Returns the recorded transient failure if there was one, otherwise `error`.
    pub(super) fn or_failure(&self, error: Error) -> Error {
        self.failure().unwrap_or(error)
    }

    /// The first transient failure, if any.
    fn failure(&self) -> Option<Error> {
        let (offset, detail) = self.0.failure.get()?;
        let (location, detail) = (self.0.location.clone(), detail.clone());
        Some(Error::Unavailable { location, offset: Some(*offset), detail })
    }

    fn ask(&self, offset: Option<u64>) -> io::Result<()> {
        self.0.on_read.as_ref().map_or(Ok(()), |ask| ask(&self.0.location, offset))
    }

    /// Records an error if it is transient and the first such.
    fn note(&self, offset: u64, error: io::Error) -> io::Error {
        if may_pass(&error) {
            self.0.failure.get_or_init(|| (offset, error.to_string()));
        }
        error
    }
}

/// Byte stream of a file with recorded reads and failures.
pub(super) struct TrackedReader<R> {
    inner: R,
    offset: u64,
    access: Access,
}

impl<R> TrackedReader<R> {
    /// Access to the file.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }
}

impl<R: Read> Read for TrackedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.access.ask(Some(self.offset)).and_then(|()| self.inner.read(into)) {
                Ok(count) => {
                    self.offset += count as u64;
                    self.access.0.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.access.note(self.offset, error)),
            }
        }
    }
}

/// A file readable from any offset.
pub(super) trait Anywhere: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;

    /// A reader of the same file starting at `start`.
    fn at(&self, start: u64) -> io::Result<Box<dyn Read + Send>>;
}

impl Anywhere for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    /// All readers share one file position.
    fn at(&self, start: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut file = self.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(Box::new(file))
    }
}

/// A file for the Parquet decoder.
pub(super) type Seekable = TrackedReader<Box<dyn Anywhere>>;

impl<R: Anywhere + 'static> TrackedReader<R> {
    /// Converts to the form used by decoders with random access.
    pub(super) fn seekable(self) -> Seekable {
        let TrackedReader { inner, offset, access } = self;
        TrackedReader { inner: Box::new(inner), offset, access }
    }
}

impl Seekable {
    fn at(&self, start: u64) -> io::Result<TrackedReader<Box<dyn Read + Send>>> {
        let inner = self.inner.at(start).map_err(|e| self.access.note(start, e))?;
        Ok(TrackedReader { inner, offset: start, access: self.access.clone() })
    }
}

impl Length for Seekable {
    fn len(&self) -> u64 {
        // The interface cannot return an error: without a length nothing can be decoded, and the failure is reported
        // then.
        self.inner.size().map_err(|e| self.access.note(0, e)).unwrap_or(0)
    }
}

impl ChunkReader for Seekable {
    type T = BufReader<TrackedReader<Box<dyn Read + Send>>>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(self.at(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let mut bytes = Vec::new();
        let read = self.at(start)?.take(length as u64).read_to_end(&mut bytes)?;
        if read != length {
            let detail = format!("{length} bytes are wanted at {start}, {read} are there");
            return Err(ParquetError::EOF(detail));
        }
        Ok(bytes.into())
    }
}

pub(super) struct OpenFile {
    records: Box<dyn Records>,
    access: Access,
}

impl OpenFile {
    /// Combines a reader with the access it reads through.
    pub(super) fn new(records: Box<dyn Records>, access: Access) -> OpenFile {
        OpenFile { records, access }
    }

    /// Returns the next step of the reader.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the file could not be read further for a transient reason.
    pub(super) fn step(&mut self) -> Result<Step, Error> {
        let step = self.records.step();
        self.access.failure().map_or(Ok(step), Err)
    }

    /// Bytes of the file read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.access.0.read_bytes.load(Ordering::Relaxed)
    }

    /// At the end of the file: reports if no record had the text field.
    pub(super) fn no_field(&self) -> Option<NoField> {
        self.records.no_field()
    }
}

#[cfg(test)]
mod tests {
    use super::super::packed::Codec;
    use super::super::{Documents, How, ReadOptions, stream_records};
    use super::*;
    use crate::counters::Counters;
    use crate::files::Entry;
    use crate::kinds::Kind;

    #[test]
    fn documents_end_where_a_file_cannot_be_read_now() {
        let entry = Entry {
            path: "a.jsonl.gz".into(),
            name: "a.jsonl.gz".to_owned(),
            group: 0,
            kind: Kind::Jsonl(Codec::Gzip),
            bytes: 0,
            named: false,
        };
        for (number, lasts) in [(5, false), (2, true)] {
            let fails: OnRead = Arc::new(move |_, _| Err(io::Error::from_raw_os_error(number)));
            let access = Access::new("a.jsonl.gz", Some(fails));
            let input = Box::new(access.watch(io::empty()));
            let opened = OpenFile::new(stream_records(entry.kind, input, &How::of("text")), access);
            let options = ReadOptions::default();
            let mut documents =
                Documents::new(String::new(), Vec::new(), options, |_, _| None, Counters::default());
            documents.current = Some((entry.clone(), opened));
            let error = documents.next().unwrap().unwrap_err();
            assert_eq!(matches!(error, Error::EmptyCorpus { .. }), lasts, "{error}");
            assert_eq!(matches!(error, Error::Unavailable { .. }), !lasts, "{error}");
            assert_eq!(documents.counters().dropped_documents(), u64::from(lasts));
        }
    }
}
