//! Tar archives as a row of entries, with damage counted and paths that climb refused.
//!
//! Only headers and data are read, nothing is ever unpacked to disk. A header that fails its checksum costs the bytes up
//! to the next sound one.

use std::io::{self, Read};

use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// Long names of GNU and pax are at most so long.
const LONGEST_NAME: u64 = 64 << 10;

/// An entry. Its data is read from the archive, which is a [`Read`] for it.
pub(super) struct Member {
    /// Relative, with `/`.
    pub path: String,
    /// Offset of its header.
    pub offset: u64,
    /// Bytes of its data.
    pub size: u64,
}

/// What comes next in an archive.
pub(super) enum Next {
    Member(Member),
    /// An entry that is not handed out, and why.
    Refused {
        offset: u64,
        bytes: u64,
        problem: Problem,
        detail: String,
    },
    End,
}

/// Why an entry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    Damaged,
    UnsafePath,
    Link,
}

/// What is said of an entry whose data is not all there.
pub(super) const CUT_OFF: &str = "the archive ends inside an entry";

/// A reader over an archive.
pub(super) struct Tarball<R> {
    input: R,
    offset: u64,
    searching: bool,
    /// A name given by the header before.
    long_name: Option<Vec<u8>>,
    /// Bytes of the current entry that were not read yet, and those that fill its last block.
    left: u64,
    padding: u64,
    /// What the input said while the current entry was read.
    failure: Option<io::Error>,
}

impl<R: Read> Read for Tarball<R> {
    /// The data of the current entry.
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

    /// The input, for what the reader of the file needs to do after an error.
    pub(super) fn input_mut(&mut self) -> &mut R {
        // Behind a broken place nothing is aligned or named any more.
        self.searching = true;
        self.long_name = None;
        (self.left, self.padding, self.failure) = (0, 0, None);
        &mut self.input
    }

    /// One block; `None` at the end of the file, also inside a block.
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

    /// Passes over what was not read of the current entry; false where the archive ends inside of it.
    ///
    /// # Errors
    /// Those of the input, also when it failed while the entry was read.
    pub(super) fn skip(&mut self) -> io::Result<bool> {
        // Behind a failure the input is not where the archive takes it to be.
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

    /// Reads the name that the current entry holds; the flag says whether all of it was there.
    fn name(&mut self) -> io::Result<(Vec<u8>, bool)> {
        let mut name = Vec::new();
        if self.left <= LONGEST_NAME {
            self.read_to_end(&mut name)?;
        }
        Ok((name, self.skip()?))
    }

    /// The next regular file; folders are passed over, and what was not read of the entry before.
    ///
    /// # Errors
    /// Those of the input.
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

/// Whether bytes begin with the header of a tar archive, old ones without a magic word included.
pub(super) fn is_tar(bytes: &[u8]) -> bool {
    let first = bytes.first_chunk::<BLOCK>();
    first.is_some_and(|block| block[0] != 0 && is_sound(Header::from_byte_slice(block), block))
}

/// The checksum of a header: the sum of its bytes with the checksum's own eight as spaces.
fn is_sound(header: &Header, block: &[u8; BLOCK]) -> bool {
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    let own: u32 = block[148..156].iter().map(|&b| u32::from(b)).sum();
    header.cksum().is_ok_and(|stored| stored == sum - own + 8 * 32)
}

/// The `path` of a pax header.
fn pax_path(data: &[u8]) -> Option<Vec<u8>> {
    let start = memchr::memmem::find(data, b" path=")? + 6;
    let end = memchr::memchr(b'\n', &data[start..])? + start;
    Some(data[start..end].to_vec())
}

/// A path without `.` and empty parts; `None` if it is absolute, climbs, or is empty.
fn safe_path(name: &[u8]) -> Option<String> {
    let name = String::from_utf8_lossy(name.split(|&b| b == 0).next().unwrap_or(&[])).replace('\\', "/");
    if name.starts_with('/') || name.as_bytes().get(1) == Some(&b':') {
        return None;
    }
    let parts: Vec<&str> = name.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| parts.join("/"))
}
