//! The file itself: unnamed from its first moment, allocated before use, with direct IO if the file system allows it.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::error::{Error, Result, remedy};
use super::space::PAGE;

/// Access mode of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered {
        /// Reason that direct IO is not used.
        why: String,
    },
    /// Memory of the host.
    Memory,
    /// No file: the machine has no data.
    Nowhere,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Direct => f.write_str("direct IO"),
            Access::Buffered { why } => write!(f, "buffered IO ({why})"),
            Access::Memory => f.write_str("memory of the host"),
            Access::Nowhere => f.write_str("no file"),
        }
    }
}

/// The transfer, piece and attempt that an operation belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub transfer: u64,
    pub piece: u32,
    pub attempt: u32,
}

/// The operations that workers need. A read or write may move less than requested.
pub(super) trait Backing: Send + Sync {
    fn write_at(&self, bytes: &[u8], offset: u64, step: Step) -> io::Result<usize>;
    fn read_at(&self, bytes: &mut [u8], offset: u64, step: Step) -> io::Result<usize>;
    /// Address of the first of `len` bytes in memory that a machine copies from and to without staging. Nothing else
    /// uses them while a transfer of theirs is in flight.
    fn place(&self, _offset: u64, _len: usize) -> Option<usize> {
        None
    }
}

impl Backing for Box<dyn Backing> {
    fn write_at(&self, bytes: &[u8], offset: u64, step: Step) -> io::Result<usize> {
        (**self).write_at(bytes, offset, step)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64, step: Step) -> io::Result<usize> {
        (**self).read_at(bytes, offset, step)
    }

    fn place(&self, offset: u64, len: usize) -> Option<usize> {
        (**self).place(offset, len)
    }
}

impl Backing for File {
    fn write_at(&self, bytes: &[u8], offset: u64, _: Step) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64, _: Step) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }
}

/// Free bytes for this process on the file system of a folder, or of its nearest existing ancestor.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(there).ok().map(|stat| stat.f_bavail * stat.f_frsize)
}

/// Creates the file and allocates `bytes` of disk. `page` is one page of page-aligned memory, to try direct IO.
pub(super) fn open(folder: &Path, bytes: u64, direct: bool, page: &mut [u8]) -> Result<(File, Access)> {
    let fail = |action: &'static str| {
        move |source: io::Error| Error::Open {
            action,
            folder: folder.to_path_buf(),
            bytes,
            remedy: remedy(&source),
            source: Arc::new(source),
        }
    };
    let file = tempfile::tempfile_in(folder).map_err(fail("create"))?;
    allocate(&file, bytes).map_err(fail("allocate"))?;
    if !direct {
        return Ok((file, Access::Buffered { why: "direct IO is switched off".to_string() }));
    }
    let access = match set_direct(&file, true).and_then(|()| try_page(&file, bytes, page)) {
        Ok(()) => Access::Direct,
        Err(refusal) if refusal.kind() == ErrorKind::InvalidInput || unsupported(&refusal) => {
            set_direct(&file, false)
                .or_else(|e| if unsupported(&e) { Ok(()) } else { Err(e) })
                .map_err(fail("open"))?;
            Access::Buffered { why: format!("{} refuses direct IO: {refusal}", folder.display()) }
        }
        Err(other) => return Err(fail("use")(other)),
    };
    Ok((file, access))
}

fn unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported)
}

/// Allocates disk for the whole file now, so that a step cannot meet a full disk; only sets the size if the file system
/// has no such call.
#[cfg(target_os = "linux")]
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    if bytes == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from) {
        Err(refusal) if unsupported(&refusal) => file.set_len(bytes),
        other => other,
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

#[cfg(target_os = "linux")]
fn set_direct(file: &File, on: bool) -> io::Result<()> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, on);
    Ok(fcntl_setfl(file, flags)?)
}

#[cfg(not(target_os = "linux"))]
fn set_direct(_: &File, _: bool) -> io::Result<()> {
    Err(io::Error::from(ErrorKind::Unsupported))
}

/// Tries one page: some file systems accept the flag and refuse the operations.
fn try_page(file: &File, bytes: u64, page: &mut [u8]) -> io::Result<()> {
    if bytes < PAGE {
        return Ok(());
    }
    FileExt::write_all_at(file, page, 0)?;
    FileExt::read_exact_at(file, page, 0)
}

/// Stopping point of a loop of operations, and the reason.
pub(super) struct IoFailure {
    pub at: usize,
    pub source: io::Error,
}

/// Repeats `operation(position, attempt)` until `len` bytes have moved. With direct IO an operation has to begin at a
/// page, so the end of a partly moved page is moved again.
pub(super) fn move_all(
    len: usize,
    direct: bool,
    mut operation: impl FnMut(usize, u32) -> io::Result<usize>,
) -> std::result::Result<(), IoFailure> {
    /// Consecutive operations without progress before giving up.
    const PATIENCE: u32 = 100;
    let (mut at, mut attempt, mut idle) = (0, 0, 0);
    while at < len {
        let moved = match operation(at, attempt) {
            Ok(0) => return Err(IoFailure { at, source: ErrorKind::UnexpectedEof.into() }),
            Ok(moved) => moved.min(len - at),
            Err(source) if source.kind() == ErrorKind::Interrupted => 0,
            Err(source) => return Err(IoFailure { at, source }),
        };
        let reached = at + moved;
        let next = if direct && reached < len { reached - reached % PAGE as usize } else { reached };
        idle = if next == at { idle + 1 } else { 0 };
        if idle > PATIENCE {
            let source = io::Error::other(format!("no progress in {idle} attempts"));
            return Err(IoFailure { at, source });
        }
        (at, attempt) = (next, attempt + 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves `len` bytes in the given steps and returns the positions at which operations began.
    fn positions(len: usize, direct: bool, moves: &[usize]) -> std::result::Result<Vec<usize>, usize> {
        let (mut seen, mut moves) = (Vec::new(), moves.iter());
        let result = move_all(len, direct, |at, attempt| {
            assert_eq!(attempt as usize, seen.len());
            seen.push(at);
            match moves.next() {
                Some(0) => Err(ErrorKind::Interrupted.into()),
                Some(moved) => Ok(*moved),
                None => Ok(0),
            }
        });
        result.map(|()| seen).map_err(|stopped| stopped.at)
    }

    #[test]
    fn short_moves_are_continued() {
        assert_eq!(positions(10, false, &[3, 0, 6, 1]), Ok(vec![0, 3, 3, 9]));
        assert_eq!(positions(12288, true, &[5000, 100, 8000, 9000]), Ok(vec![0, 4096, 4096, 8192]));
        assert_eq!(positions(10, false, &[3]), Err(3));
        assert_eq!(positions(8192, true, &[100; 200]), Err(0));
    }
}
