//! Tar archives as a sequence of entries, with damage counted and unsafe paths refused.
//!
//! Only headers and data are read, nothing is ever extracted to disk. A header with a wrong checksum costs the bytes
//! up to the next valid one.

use std::io::{self, Read};

use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// Length limit of GNU and pax long names.
const LONGEST_NAME: u64 = 64 << 10;

/// A regular file entry. Its data is read from the archive, which implements [`Read`] for it.
pub(super) struct Member {
    /// Relative path, with `/`.
    pub path: String,
    /// Offset of its header.
    pub offset: u64,
    /// Bytes of its data.
    pub size: u64,
}

/// Next item of an archive.
pub(super) enum Next {
    Member(Member),
    /// A refused entry and the reason.
    Refused {
        offset: u64,
        bytes: u64,
        problem: Problem,
        detail: String,
    },
    End,
}

/// Reason for refusing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    Damaged,
    UnsafePath,
    Link,
}

/// Message for an entry with incomplete data.
pub(super) const CUT_OFF: &str = "the archive ends inside an entry";

/// Reader of a tar archive.
pub(super) struct Tarball<R> {
    input: R,
    offset: u64,
    searching: bool,
    /// Long name given by the preceding header.
    long_name: Option<Vec<u8>>,
    /// Unread bytes of the current entry, and the padding of its last block.
    left: u64,
    padding: u64,
    /// Error of the input while the current entry was read.
    failure: Option<io::Error>,
}

impl<R: Read> Read for Tarball<R> {
    /// Reads data of the current entry.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        match self.input.read(&mut into[..most]) {
            Ok(count) => {
                self.left -= count as u64;
                self.offset += count as u64;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.failure.get_or_insert(error);
                Err(copy)
            }
        }
    }
}

impl<R: Read> Tarball<R> {
    pub(super) fn new(input: R) -> Tarball<R> {
        let (offset, searching, long_name) = (0, false, None);
        Tarball { input, offset, searching, long_name, left: 0, padding: 0, failure: None }
    }

    /// The input, for recovery after an error.
    pub(super) fn input_mut(&mut self) -> &mut R {
        // After a damaged spot, neither alignment nor a pending name is valid.
        self.searching = true;
        self.long_name = None;
        (self.left, self.padding, self.failure) = (0, 0, None);
        &mut self.input
    }

    /// Reads one block; `None` at the end of the file, even inside a block.
    fn block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Ok(0) => return Ok(None),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.offset += BLOCK as u64;
        Ok(Some(block))
    }

    /// Skips the unread rest of the current entry; false if the archive ends inside it.
    pub(super) fn skip(&mut self) -> io::Result<bool> {
        // After a failure the input's position is unknown.
        if self.failure.is_none()
            && let Err(error) = io::copy(self, &mut io::sink())
        {
            self.failure.get_or_insert(error);
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let whole = std::mem::take(&mut self.left) == 0;
        let padding = std::mem::take(&mut self.padding);
        self.offset += io::copy(&mut (&mut self.input).take(padding), &mut io::sink())?;
        Ok(whole)
    }

    /// Reads the name stored in the current entry; false if it is incomplete.
    fn name(&mut self) -> io::Result<(Vec<u8>, bool)> {
        let mut name = Vec::new();
        if self.left <= LONGEST_NAME {
            self.read_to_end(&mut name)?;
        }
        Ok((name, self.skip()?))
    }

    /// Advances to the next regular file, skipping folders and the unread rest of the current entry.
    pub(super) fn next(&mut self) -> io::Result<Next> {
        loop {
            self.skip()?;
            let offset = self.offset;
            let Some(block) = self.block()? else { return Ok(Next::End) };
            if block.iter().all(|&b| b == 0) {
                continue;
            }
            let header = Header::from_byte_slice(&block);
            let refused = |bytes, problem, detail: &str| Next::Refused {
                offset,
                bytes,
                problem,
                detail: detail.to_string(),
            };
            let size = header.entry_size();
            let (Some(size), true) = (size.ok(), is_sound(header, &block)) else {
                if std::mem::replace(&mut self.searching, true) {
                    continue;
                }
                return Ok(refused(BLOCK as u64, Problem::Damaged, "a header with a wrong checksum"));
            };
            self.searching = false;
            (self.left, self.padding) = (size, size.wrapping_neg() % BLOCK as u64);
            match header.entry_type() {
                EntryType::GNULongName | EntryType::XHeader => {
                    let (data, whole) = self.name()?;
                    if !whole {
                        return Ok(refused(size, Problem::Damaged, "the archive ends inside a name"));
                    }
                    let is_pax = header.entry_type() == EntryType::XHeader;
                    self.long_name = if is_pax { pax_path(&data) } else { Some(data) };
                }
                EntryType::Regular | EntryType::Continuous => {
                    let name = self.long_name.take().unwrap_or_else(|| header.path_bytes().into_owned());
                    if let Some(path) = safe_path(&name) {
                        return Ok(Next::Member(Member { path, offset, size }));
                    }
                    if !self.skip()? {
                        return Ok(refused(size, Problem::Damaged, CUT_OFF));
                    }
                    let detail = format!("path `{}`", String::from_utf8_lossy(&name));
                    return Ok(refused(size, Problem::UnsafePath, &detail));
                }
                EntryType::Symlink | EntryType::Link => {
                    self.long_name = None;
                    self.skip()?;
                    return Ok(refused(0, Problem::Link, "a link"));
                }
                _ => self.long_name = None,
            }
        }
    }
}

/// Returns true if bytes begin with a tar header, including old ones without magic bytes.
pub(super) fn is_tar(bytes: &[u8]) -> bool {
    let first = bytes.first_chunk::<BLOCK>();
    first.is_some_and(|block| block[0] != 0 && is_sound(Header::from_byte_slice(block), block))
}

/// Verifies a header's checksum: the sum of its bytes, with the eight checksum bytes counted as spaces.
fn is_sound(header: &Header, block: &[u8; BLOCK]) -> bool {
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    let own: u32 = block[148..156].iter().map(|&b| u32::from(b)).sum();
    header.cksum().is_ok_and(|stored| stored == sum - own + 8 * 32)
}

/// `path` record of a pax header.
fn pax_path(data: &[u8]) -> Option<Vec<u8>> {
    let start = memchr::memmem::find(data, b" path=")? + 6;
    let end = memchr::memchr(b'\n', &data[start..])? + start;
    Some(data[start..end].to_vec())
}

/// Normalizes a path, dropping `.` and empty components; `None` if it is absolute, contains `..`, or is empty.
fn safe_path(name: &[u8]) -> Option<String> {
    let name = String::from_utf8_lossy(name.split(|&b| b == 0).next().unwrap_or(&[])).replace('\\', "/");
    if name.starts_with('/') || name.as_bytes().get(1) == Some(&b':') {
        return None;
    }
    let parts: Vec<&str> = name.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| parts.join("/"))
}
