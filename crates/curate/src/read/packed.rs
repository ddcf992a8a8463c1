//! Compressed files as a byte stream that recovers from damage.
//!
//! A gzip, zstd or bzip2 file is a sequence of members (frames, streams); a Common Crawl file has one per record.
//! When a member is broken, the reader reports it once and [`Decompressor::resync`] continues at the next member,
//! found by its magic bytes. A member that expands beyond the limit is abandoned. Memory holds the last bytes of one
//! member, never a whole file.

use std::fmt;
use std::io::{self, BufRead, Read};

use fathom_base::human;
use flate2::bufread::GzDecoder;

use crate::counters::Reason;

/// Bytes read or decoded per step.
const CHUNK: usize = 128 << 10;
/// Compressed bytes of a member kept for finding the next member after a broken spot.
const REPLAY: usize = 4 << 20;
/// Bytes that may be scanned twice in addition to the size of the file; keeps resynchronization linear.
const SECOND_LOOKS: u64 = 64 << 20;

/// Compression format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Plain,
    Gzip,
    Zstd,
    Bzip2,
}

impl Codec {
    /// Codec by the last extension of a lower-case name, and the rest of the name.
    pub(crate) fn split(name: &str) -> (Codec, &str) {
        for (end, codec) in
            [(".gz", Codec::Gzip), (".zst", Codec::Zstd), (".zstd", Codec::Zstd), (".bz2", Codec::Bzip2)]
        {
            if let Some(stem) = name.strip_suffix(end) {
                return (codec, stem);
            }
        }
        (Codec::Plain, name)
    }

    fn magic(self) -> &'static [u8] {
        match self {
            Codec::Plain => b"",
            Codec::Gzip => b"\x1f\x8b\x08",
            Codec::Zstd => b"\x28\xb5\x2f\xfd",
            Codec::Bzip2 => b"BZh",
        }
    }
}

/// Limits that distinguish decompression bombs from data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expansion {
    /// Expanded size always allowed for a member, in bytes.
    pub floor: u64,
    /// Maximum expansion ratio beyond the floor.
    pub ratio: u64,
    /// Maximum zstd window, as a power of two.
    pub window_log: u32,
}

impl Default for Expansion {
    fn default() -> Self {
        Expansion { floor: 256 << 20, ratio: 100, window_log: 27 }
    }
}

/// A zstd frame requires a larger window than allowed. Handled like damage, so that reading continues after the
/// frame, but counted under its own reason.
#[derive(Debug)]
struct LongWindow {
    allowed: u64,
}

impl fmt::Display for LongWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = human::bytes(self.allowed);
        write!(
            f,
            "its zstd window is larger than {allowed}; `input.max_window_bytes` of a curation allows more"
        )
    }
}

impl std::error::Error for LongWindow {}

/// Reason under which this error of a compressed file is counted.
pub(super) fn cause(error: &io::Error) -> Reason {
    match error.get_ref() {
        Some(inner) if inner.is::<LongWindow>() => Reason::TooLarge,
        _ => Reason::BrokenArchive,
    }
}

impl Expansion {
    /// Maximum size to which `packed` bytes may expand.
    pub(crate) fn most(self, packed: u64) -> u64 {
        self.floor.max(self.ratio.saturating_mul(packed))
    }
}

/// Decompressing reader of one file.
pub(crate) struct Decompressor {
    codec: Codec,
    expansion: Expansion,
    stage: Stage,
    out: Vec<u8>,
    at: usize,
    /// Decoded bytes before `out`.
    passed: u64,
    member: u64,
    member_start: u64,
    member_bytes: u64,
    dictionary: Vec<u8>,
}

enum Stage {
    Between(RewindReader),
    Gzip(Box<GzDecoder<RewindReader>>),
    Zstd(zstd::Decoder<'static, RewindReader>),
    Bzip2(Box<bzip2::bufread::BzDecoder<RewindReader>>),
    /// At the end, or temporarily taken out.
    Gone,
}

impl Decompressor {
    pub(crate) fn new(input: Box<dyn Read + Send>, codec: Codec, expansion: Expansion) -> Decompressor {
        Decompressor {
            codec,
            expansion,
            stage: Stage::Between(RewindReader::new(input)),
            out: Vec::new(),
            at: 0,
            passed: 0,
            member: 0,
            member_start: 0,
            member_bytes: 0,
            dictionary: Vec::new(),
        }
    }

    /// Number of the member that the bytes of the last `fill_buf` came from; always 0 for plain files.
    pub(crate) fn member(&self) -> u64 {
        self.member
    }

    /// Returns true if the file is compressed, so that errors may be damage.
    pub(crate) fn is_packed(&self) -> bool {
        self.codec != Codec::Plain
    }

    /// Position in the file: start of the current member, or the offset itself in plain files.
    pub(crate) fn offset(&self) -> u64 {
        if self.is_packed() { self.member_start } else { self.passed + self.at as u64 }
    }

    /// Offset in the decoded stream.
    pub(crate) fn decoded(&self) -> u64 {
        self.passed + self.at as u64
    }

    /// Skips the broken member after an error of `fill_buf`. False if no further member is found.
    pub(crate) fn resync(&mut self) -> io::Result<bool> {
        self.passed += self.out.len() as u64;
        self.out.clear();
        self.at = 0;
        let Stage::Between(input) = &mut self.stage else { return Ok(false) };
        input.back_to_mark(1);
        if input.offset() <= self.member_start && self.member > 0 {
            input.fill_buf()?;
            input.consume(1);
        }
        input.find(self.codec.magic())
    }

    /// Fills `out`; leaves it empty at the end.
    fn decode(&mut self) -> io::Result<()> {
        self.passed += self.out.len() as u64;
        self.at = 0;
        self.out.resize(CHUNK, 0);
        loop {
            let read = match &mut self.stage {
                Stage::Gone => Ok(0),
                Stage::Between(input) if self.codec == Codec::Plain => input.read(&mut self.out),
                Stage::Between(_) => {
                    if self.open_member()? {
                        continue;
                    }
                    Ok(0)
                }
                Stage::Gzip(decoder) => decoder.read(&mut self.out),
                Stage::Zstd(decoder) => decoder.read(&mut self.out),
                Stage::Bzip2(decoder) => decoder.read(&mut self.out),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) if !matches!(self.stage, Stage::Between(_) | Stage::Gone) => {
                    self.close_member();
                    self.check_progress()?;
                }
                Ok(count) => {
                    self.out.truncate(count);
                    return self.check_expansion(count);
                }
                Err(error) => {
                    self.out.clear();
                    self.close_member();
                    return Err(self.classified(error));
                }
            }
        }
    }

    /// Guards against an endless loop when the decoder consumes no input.
    fn check_progress(&mut self) -> io::Result<()> {
        if let Stage::Between(input) = &self.stage
            && input.offset() <= self.member_start
        {
            self.out.clear();
            return Err(io::Error::new(io::ErrorKind::InvalidData, "nothing can be decoded here"));
        }
        Ok(())
    }

    /// Passes on errors of the file unchanged; turns errors of the decoder into damage.
    fn classified(&mut self, error: io::Error) -> io::Error {
        if let Stage::Between(input) = &mut self.stage
            && let Some(failure) = input.failure.take()
        {
            return failure;
        }
        let message = error.to_string();
        if self.codec == Codec::Zstd && message.contains("too much memory") {
            let allowed = 1 << self.expansion.window_log.min(63);
            return io::Error::new(io::ErrorKind::InvalidData, LongWindow { allowed });
        }
        // Not damage: another run may have enough memory.
        if self.codec == Codec::Zstd && message.contains("not enough memory") {
            return io::Error::new(io::ErrorKind::OutOfMemory, message);
        }
        io::Error::new(io::ErrorKind::InvalidData, message)
    }

    fn check_expansion(&mut self, count: usize) -> io::Result<()> {
        if !self.is_packed() {
            return Ok(());
        }
        self.member_bytes += count as u64;
        let packed = match &self.stage {
            Stage::Gzip(d) => d.get_ref().offset(),
            Stage::Zstd(d) => d.get_ref().offset(),
            Stage::Bzip2(d) => d.get_ref().offset(),
            Stage::Between(_) | Stage::Gone => return Ok(()),
        };
        let packed = packed.saturating_sub(self.member_start).max(1);
        let Expansion { floor, ratio, .. } = self.expansion;
        if self.member_bytes > floor && self.member_bytes / packed > ratio {
            self.out.clear();
            self.close_member();
            let message = format!(
                "{packed} bytes expand to more than {}; the limit is {ratio} times",
                self.member_bytes
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(())
    }

    fn close_member(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Gzip(decoder) => Stage::Between(decoder.into_inner()),
            Stage::Zstd(decoder) => Stage::Between(decoder.finish()),
            Stage::Bzip2(decoder) => Stage::Between(decoder.into_inner()),
            other => other,
        };
    }

    /// Starts the next member; false at the end of the file.
    fn open_member(&mut self) -> io::Result<bool> {
        let Stage::Between(mut input) = std::mem::replace(&mut self.stage, Stage::Gone) else {
            return Ok(false);
        };
        let more = if self.codec == Codec::Gzip {
            input.skip_zeros()
        } else {
            input.fill_buf().map(|b| !b.is_empty())
        };
        match more {
            Ok(true) => {}
            Ok(false) => {
                self.out.clear();
                return Ok(false);
            }
            Err(error) => {
                self.out.clear();
                self.stage = Stage::Between(input);
                return Err(error);
            }
        }
        if self.codec == Codec::Zstd && self.member == 0 {
            match dictionary(&mut input) {
                Ok(found) => self.dictionary = found,
                Err(error) => {
                    self.member += 1;
                    self.out.clear();
                    self.stage = Stage::Between(input);
                    return Err(self.classified(error));
                }
            }
        }
        input.mark();
        self.member += 1;
        self.member_start = input.offset();
        self.member_bytes = 0;
        self.stage = match self.codec {
            Codec::Plain => Stage::Between(input),
            Codec::Gzip => Stage::Gzip(Box::new(GzDecoder::new(input))),
            Codec::Bzip2 => Stage::Bzip2(Box::new(bzip2::bufread::BzDecoder::new(input))),
            Codec::Zstd => {
                let mut decoder = zstd::Decoder::with_dictionary(input, &self.dictionary)?;
                decoder.window_log_max(self.expansion.window_log)?;
                Stage::Zstd(decoder.single_frame())
            }
        };
        Ok(true)
    }
}

/// Copies what a buffered reader has available.
fn copy_ready(from: &mut impl BufRead, into: &mut [u8]) -> io::Result<usize> {
    let ready = from.fill_buf()?;
    let count = ready.len().min(into.len());
    into[..count].copy_from_slice(&ready[..count]);
    from.consume(count);
    Ok(count)
}

impl Read for Decompressor {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        copy_ready(self, into)
    }
}

impl BufRead for Decompressor {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.out.len() {
            self.decode()?;
        }
        Ok(&self.out[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.out.len());
    }
}

/// Dictionary in the first, skippable frame of a `.warc.zst` file; empty if there is none.
fn dictionary(input: &mut RewindReader) -> io::Result<Vec<u8>> {
    const FRAME: &[u8] = b"\x5d\x2a\x4d\x18";
    const LARGEST: u32 = 16 << 20;
    let head = input.peek(8)?;
    if head.len() < 8 || !head.starts_with(FRAME) {
        return Ok(Vec::new());
    }
    let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if length > LARGEST {
        return Ok(Vec::new());
    }
    input.consume(8);
    let mut bytes = Vec::new();
    input.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.starts_with(Codec::Zstd.magic()) {
        let mut plain = Vec::new();
        zstd::Decoder::new(bytes.as_slice())?.take(u64::from(LARGEST)).read_to_end(&mut plain)?;
        return Ok(plain);
    }
    Ok(bytes)
}

/// A buffered file that can return to a recent mark.
struct RewindReader {
    inner: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    at: usize,
    /// Offset of `buffer[0]` in the file.
    start: u64,
    mark: u64,
    /// Total bytes rewound so far.
    second_looks: u64,
    /// Last error of the file itself.
    failure: Option<io::Error>,
}

impl RewindReader {
    fn new(inner: Box<dyn Read + Send>) -> RewindReader {
        RewindReader { inner, buffer: Vec::new(), at: 0, start: 0, mark: 0, second_looks: 0, failure: None }
    }

    fn offset(&self) -> u64 {
        self.start + self.at as u64
    }

    fn mark(&mut self) {
        self.mark = self.offset();
    }

    /// Rewinds to `skip` bytes after the mark if those bytes are still buffered and the rescan budget allows.
    fn back_to_mark(&mut self, skip: u64) {
        let (here, target) = (self.offset(), self.mark + skip);
        let distance = here.saturating_sub(target);
        if target >= self.start && target < here && self.second_looks + distance <= here + SECOND_LOOKS {
            self.second_looks += distance;
            self.at = (target - self.start) as usize;
        }
    }

    /// Appends one more chunk to the buffer; false at the end of the file.
    fn more(&mut self) -> io::Result<bool> {
        let keep = self.mark.saturating_sub(self.start).min(self.at as u64) as usize;
        let drop = if self.buffer.len() - keep > REPLAY { self.at } else { keep };
        if drop > 0 {
            self.buffer.drain(..drop);
            self.at -= drop;
            self.start += drop as u64;
        }
        let filled = self.buffer.len();
        self.buffer.resize(filled + CHUNK, 0);
        let read = loop {
            match self.inner.read(&mut self.buffer[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(count) => Ok(count > 0),
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.failure = Some(error);
                Err(copy)
            }
        }
    }

    /// Next bytes without consuming them, at least `count` unless the file ends before.
    fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.buffer.len() - self.at < count && self.more()? {}
        Ok(&self.buffer[self.at..])
    }

    /// Advances to the next occurrence of `magic`; false if the file ends before.
    fn find(&mut self, magic: &[u8]) -> io::Result<bool> {
        // Bytes already searched need not be kept for a rescan.
        self.mark = self.offset();
        loop {
            let ahead = self.peek(magic.len())?;
            if ahead.len() < magic.len() {
                let rest = ahead.len();
                self.consume(rest);
                return Ok(false);
            }
            if let Some(found) = memchr::memmem::find(ahead, magic) {
                self.consume(found);
                return Ok(true);
            }
            let searched = ahead.len() - magic.len() + 1;
            self.consume(searched);
            self.mark = self.offset();
        }
    }

    /// Skips zero bytes, used as padding by some writers; true if other data follows.
    fn skip_zeros(&mut self) -> io::Result<bool> {
        loop {
            let ahead = self.fill_buf()?;
            if ahead.is_empty() {
                return Ok(false);
            }
            match ahead.iter().position(|&b| b != 0) {
                Some(zeros) => {
                    self.consume(zeros);
                    return Ok(true);
                }
                None => {
                    let zeros = ahead.len();
                    self.consume(zeros);
                    self.mark = self.offset();
                }
            }
        }
    }
}

impl Read for RewindReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        copy_ready(self, into)
    }
}

impl BufRead for RewindReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.buffer.len() {
            self.more()?;
        }
        Ok(&self.buffer[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.buffer.len());
    }
}
