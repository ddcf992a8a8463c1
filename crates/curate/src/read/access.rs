//! Access to a file, watched where it is read: below all decoders, which wrap its errors or make damage of their own of them.
//!
//! The first failure that may pass ([`may_pass`]) is kept next to the readers. Whatever a decoder makes of it, and whatever it
//! still finds to read, [`Opened::step`] gives that failure: a file is counted as damaged only where its bytes were there.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::{NoField, Records, Step};
use crate::error::{Error, may_pass};

/// Asked before an input file is opened, with its path or address, and before each of its reads, with the offset too. Its
/// error takes the place of the call's: so a test is a disk that fails once.
pub type OnRead = Arc<dyn Fn(&str, Option<u64>) -> io::Result<()> + Send + Sync>;

/// The access to one file, shared by all its readers.
#[derive(Clone)]
pub(super) struct Access(Arc<Shared>);

struct Shared {
    location: String,
    on_read: Option<OnRead>,
    /// The offset and the words of the first failure that may pass.
    failure: OnceLock<(u64, String)>,
    /// Bytes read, by whatever reader.
    read_bytes: AtomicU64,
}

impl Access {
    /// To the file with this path or address.
    pub(super) fn new(location: &str, on_read: Option<OnRead>) -> Access {
        let (location, failure) = (location.to_owned(), OnceLock::new());
        Access(Arc::new(Shared { location, on_read, failure, read_bytes: AtomicU64::new(0) }))
    }

    /// Opens a local file.
    ///
    /// # Errors
    /// [`Error::Read`], or [`Error::Unavailable`] where it may open later.
    pub(super) fn open(&self, path: &Path) -> Result<Watched<File>, Error> {
        let opened = self.ask(None).and_then(|()| File::open(path));
        opened.map(|file| self.watch(file)).map_err(|e| Error::access(&self.0.location, None, e))
    }

    /// Watches what `inner` says when it is read from its beginning.
    pub(super) fn watch<R>(&self, inner: R) -> Watched<R> {
        Watched { inner, offset: 0, access: self.clone() }
    }

    /// `error`, unless it comes from a failure that may pass: then that.
    pub(super) fn or_failure(&self, error: Error) -> Error {
        self.failure().unwrap_or(error)
    }

    /// The first failure that may pass, if there was one.
    fn failure(&self) -> Option<Error> {
        let (offset, detail) = self.0.failure.get()?;
        let (location, detail) = (self.0.location.clone(), detail.clone());
        Some(Error::Unavailable { location, offset: Some(*offset), detail })
    }

    fn ask(&self, offset: Option<u64>) -> io::Result<()> {
        self.0.on_read.as_ref().map_or(Ok(()), |ask| ask(&self.0.location, offset))
    }

    /// Keeps an error if it may pass and is the first of them.
    fn note(&self, offset: u64, error: io::Error) -> io::Error {
        if may_pass(&error) {
            self.0.failure.get_or_init(|| (offset, error.to_string()));
        }
        error
    }
}

/// The bytes of a file.
pub(super) struct Watched<R> {
    inner: R,
    offset: u64,
    access: Access,
}

impl<R> Watched<R> {
    /// The access to the file.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }
}

impl<R: Read> Read for Watched<R> {
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

/// A file that can be read from any place on.
pub(super) trait Anywhere: Send + Sync {
    /// Its bytes.
    fn size(&self) -> io::Result<u64>;

    /// A reader of the same file from `start` on.
    fn at(&self, start: u64) -> io::Result<Box<dyn Read + Send>>;
}

impl Anywhere for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    /// All readers share the place in the file.
    fn at(&self, start: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut file = self.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(Box::new(file))
    }
}

/// A file for the decoder of Parquet.
pub(super) type Seekable = Watched<Box<dyn Anywhere>>;

impl<R: Anywhere + 'static> Watched<R> {
    /// For a decoder that jumps about in the file.
    pub(super) fn seekable(self) -> Seekable {
        let Watched { inner, offset, access } = self;
        Watched { inner: Box::new(inner), offset, access }
    }
}

impl Seekable {
    fn at(&self, start: u64) -> io::Result<Watched<Box<dyn Read + Send>>> {
        let inner = self.inner.at(start).map_err(|e| self.access.note(start, e))?;
        Ok(Watched { inner, offset: start, access: self.access.clone() })
    }
}

impl Length for Seekable {
    fn len(&self) -> u64 {
        // The interface has no place for an error: without a length nothing can be decoded, and the failure is reported then.
        self.inner.size().map_err(|e| self.access.note(0, e)).unwrap_or(0)
    }
}

impl ChunkReader for Seekable {
    type T = BufReader<Watched<Box<dyn Read + Send>>>;

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

/// An open file.
pub(super) struct Opened {
    records: Box<dyn Records>,
    access: Access,
}

impl Opened {
    /// The records that are made of what `access` gives.
    pub(super) fn new(records: Box<dyn Records>, access: Access) -> Opened {
        Opened { records, access }
    }

    /// What comes next.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the file could not be read on, for a reason that may pass.
    pub(super) fn step(&mut self) -> Result<Step, Error> {
        let step = self.records.step();
        self.access.failure().map_or(Ok(step), Err)
    }

    /// Bytes of the file that were read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.access.0.read_bytes.load(Ordering::Relaxed)
    }

    /// At the end: that no record had the field of the text.
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
    use crate::files::{Entry, Kind};

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
            let opened = Opened::new(stream_records(entry.kind, input, &How::of("text")), access);
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
