//! Tar archives as a row of entries, with damage counted and paths that climb refused.
//!
//! Only headers and data are read, nothing is ever unpacked to disk. A header that fails its checksum costs the bytes up
//! to the next sound one.

use std::io::{self, Read};

use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// Long names of GNU and pax are at most so long.
const LONGEST_NAME: u64 = 64 << 10;

/// An entry whose data has been read.
pub(super) struct Member {
    /// Relative, with `/`.
    pub path: String,
    /// Offset of its header.
    pub offset: u64,
    pub data: Vec<u8>,
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
    TooLarge,
    Link,
}

/// A reader over an archive.
pub(super) struct Tarball<R> {
    input: R,
    offset: u64,
    limit: u64,
    searching: bool,
    /// A name given by the header before.
    long_name: Option<Vec<u8>>,
}

impl<R: Read> Tarball<R> {
    /// No entry larger than `limit` bytes is read into memory.
    pub(super) fn new(input: R, limit: usize) -> Tarball<R> {
        Tarball { input, offset: 0, limit: limit as u64, searching: false, long_name: None }
    }

    /// The input, for what the reader of the file needs to do after an error.
    pub(super) fn input_mut(&mut self) -> &mut R {
        // Behind a broken place nothing is aligned or named any more.
        self.searching = true;
        self.long_name = None;
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

    /// Reads or skips the data of an entry and its padding; the flag says whether all was there.
    fn data(&mut self, size: u64, keep: bool) -> io::Result<(Vec<u8>, bool)> {
        let mut data = Vec::new();
        let mut part = (&mut self.input).take(size);
        let read =
            if keep { part.read_to_end(&mut data)? as u64 } else { io::copy(&mut part, &mut io::sink())? };
        self.offset += read;
        let padding = size.wrapping_neg() % BLOCK as u64;
        self.offset += io::copy(&mut (&mut self.input).take(padding), &mut io::sink())?;
        Ok((data, read == size))
    }

    /// The next regular file; folders and links are passed over.
    ///
    /// # Errors
    /// Those of the input.
    pub(super) fn next(&mut self) -> io::Result<Next> {
        loop {
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
            match header.entry_type() {
                EntryType::GNULongName | EntryType::XHeader => {
                    let (data, whole) = self.data(size, size <= LONGEST_NAME)?;
                    if !whole {
                        return Ok(refused(size, Problem::Damaged, "the archive ends inside a name"));
                    }
                    let is_pax = header.entry_type() == EntryType::XHeader;
                    self.long_name = if is_pax { pax_path(&data) } else { Some(data) };
                }
                EntryType::Regular | EntryType::Continuous => {
                    let name = self.long_name.take().unwrap_or_else(|| header.path_bytes().into_owned());
                    let path = safe_path(&name);
                    let keep = path.is_some() && size <= self.limit;
                    let (data, whole) = self.data(size, keep)?;
                    return Ok(match path {
                        _ if !whole => refused(size, Problem::Damaged, "the archive ends inside an entry"),
                        None => {
                            let detail = format!("path `{}`", String::from_utf8_lossy(&name));
                            refused(size, Problem::UnsafePath, &detail)
                        }
                        Some(_) if !keep => {
                            let detail = format!("an entry of {size} bytes, the limit is {}", self.limit);
                            refused(size, Problem::TooLarge, &detail)
                        }
                        Some(path) => Next::Member(Member { path, offset, data }),
                    });
                }
                EntryType::Symlink | EntryType::Link => {
                    self.long_name = None;
                    self.data(size, false)?;
                    return Ok(refused(0, Problem::Link, "a link"));
                }
                _ => {
                    self.long_name = None;
                    self.data(size, false)?;
                }
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
