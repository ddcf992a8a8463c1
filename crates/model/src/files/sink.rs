//! A file written sequentially, bypassing the page cache while nothing waits for it: the cache costs another copy by
//! the processor, at the expense of training steps.

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

/// Alignment of direct writes: the largest block size of current disks.
const PAGE: usize = 4096;
/// Bytes per direct write.
const BLOCK_BYTES: usize = 4 << 20;

/// Set by a waiting reader; writes then go through the page cache.
pub type Hurry = Arc<AtomicBool>;

/// The file, and its last bytes.
pub(super) struct Sink {
    file: File,
    /// The same file opened for direct writes.
    direct: Option<(File, Hurry)>,
    /// Buffer with space for one block aligned to [`PAGE`].
    buffer: Vec<u8>,
    start: usize,
    filled: usize,
    /// Bytes in the file, in whole blocks.
    written: u64,
}

impl Sink {
    /// Creates the file with a mode, replacing leftovers under its name; a symbolic link there is removed, not
    /// followed.
    pub fn create(path: &Path, mode: u32) -> Result<Sink> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::options().write(true).create_new(true).mode(mode).open(path)?;
        Ok(Sink { file, direct: None, buffer: Vec::new(), start: 0, filled: 0, written: 0 })
    }

    /// Bypasses the page cache from here on, if the file system supports it, until `hurry` is set.
    pub fn past_cache(&mut self, path: &Path, hurry: Hurry) {
        let mut options = File::options();
        options.write(true).custom_flags((OFlags::DIRECT | OFlags::NOFOLLOW).bits() as i32);
        self.direct = options.open(path).ok().map(|file| (file, hurry));
    }

    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BLOCK_BYTES + PAGE];
            self.start = self.buffer.as_ptr().align_offset(PAGE).min(PAGE);
        }
        while !bytes.is_empty() {
            let now = bytes.len().min(BLOCK_BYTES - self.filled);
            let at = self.start + self.filled;
            self.buffer[at..at + now].copy_from_slice(&bytes[..now]);
            (self.filled, bytes) = (self.filled + now, &bytes[now..]);
            if self.filled == BLOCK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes out the buffer.
    fn flush(&mut self) -> Result<()> {
        let bytes = &self.buffer[self.start..self.start + self.filled];
        let whole = self.filled.is_multiple_of(PAGE);
        let direct = self.direct.as_ref().filter(|(_, hurry)| whole && !hurry.load(Ordering::Relaxed));
        let done = match direct.map(|(file, _)| file.write_all_at(bytes, self.written)) {
            // The file system accepts the flag but not the write.
            Some(Err(error)) if error.kind() == ErrorKind::InvalidInput => None,
            other => other,
        };
        done.unwrap_or_else(|| self.file.write_all_at(bytes, self.written))?;
        self.written += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// Flushes everything to disk.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.buffer = Vec::new();
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_the_same_however_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..2 * BLOCK_BYTES + 12_345).map(|at| ((at * at) >> 7) as u8).collect();
        for (name, direct, hurry_at) in
            [("a", false, usize::MAX), ("b", true, usize::MAX), ("c", true, 5_000_000)]
        {
            let path = folder.path().join(name);
            let mut sink = Sink::create(&path, 0o600).unwrap();
            let hurry = Hurry::default();
            if direct {
                sink.past_cache(&path, hurry.clone());
            }
            let mut done = 0;
            for part in bytes.chunks(777_777) {
                hurry.store(done > hurry_at, Ordering::Relaxed);
                sink.write(part).unwrap();
                done += part.len();
            }
            sink.sync().unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "{name}");
        }
    }
}
