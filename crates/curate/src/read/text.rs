//! Files that are a single text: plain ones, split where they exceed the limit, and HTML pages.

use std::io::{self, Read};

use fathom_prose::extract::Content;

use super::charset::{Transcoder, detected, utf8};
use super::record::Columns;
use super::records::{Loss, Raw, Records, Step};
use super::{html_to_text, packed};
use crate::counters::Reason;

/// A text, and its charset if that is not UTF-8.
type DecodedText = (String, Option<&'static str>);

/// A plain text file in parts of at most `limit` bytes.
pub(super) struct TextParts {
    file: Transcoder,
    /// Decodes the bytes at an offset.
    decode: fn(Vec<u8>, u64) -> Result<DecodedText, Loss>,
    limit: usize,
    /// Bytes read beyond the last split.
    carry: Vec<u8>,
    /// Offset in the file of the first byte of `carry`.
    offset: u64,
    part: u64,
    finished: bool,
}

impl TextParts {
    /// Creates a reader that drops text that is not UTF-8.
    pub(super) fn new(file: Box<dyn Read + Send>, limit: usize) -> TextParts {
        let (file, carry) = (Transcoder::never(file), Vec::new());
        let decode = |bytes, offset| utf8(bytes, offset).map(|text| (text, None));
        TextParts { file, decode, limit, carry, offset: 0, part: 0, finished: false }
    }

    /// Creates a reader that detects charsets other than UTF-8.
    pub(super) fn detecting(file: Box<dyn Read + Send>, limit: usize) -> TextParts {
        TextParts {
            file: Transcoder::by_mark(file),
            decode: detected,
            ..TextParts::new(Box::new(io::empty()), limit)
        }
    }

    /// Reads the next part; it ends after the last line end, or before the last incomplete character.
    fn part(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.carry);
        // One byte more than a part, so that the end of a file of exactly `limit` bytes is noticed.
        let room = (self.limit + 1).saturating_sub(bytes.len()) as u64;
        (&mut self.file).take(room).read_to_end(&mut bytes)?;
        if bytes.len() <= self.limit {
            self.finished = true;
            return Ok(bytes);
        }
        let cut = match memchr::memrchr(b'\n', &bytes[..self.limit]) {
            Some(end) => end + 1,
            None => character_start(&bytes, self.limit),
        };
        self.carry = bytes.split_off(cut);
        Ok(bytes)
    }
}

/// Last position at or before `at` (and after 0) where a UTF-8 character starts; `at` if there is none nearby.
fn character_start(bytes: &[u8], at: usize) -> usize {
    let is_start = |&i: &usize| bytes[i] & 0xc0 != 0x80;
    (at.saturating_sub(3).max(1)..=at).rev().find(is_start).unwrap_or(at)
}

impl Records for TextParts {
    fn step(&mut self) -> Step {
        if self.finished {
            return Step::End;
        }
        let bytes = match self.part() {
            Ok(bytes) => bytes,
            Err(error) => {
                self.finished = true;
                return broken(error, format!("byte {} of the text and after", self.offset));
            }
        };
        let start = self.offset;
        self.offset += bytes.len() as u64;
        self.part += 1;
        let whole = self.finished && self.part == 1;
        match (self.decode)(bytes, start) {
            Ok((text, charset)) => {
                let charset = charset.or(self.file.charset());
                let columns = charset.map(|name| ("charset".to_string(), name.to_string()));
                let number = (!whole).then_some(self.part);
                Step::Record(Raw { columns: columns.into_iter().collect(), ..Raw::text(text, number) })
            }
            Err(loss) => Step::Lost(loss),
        }
    }
}

/// An HTML page, read as a whole.
pub(super) struct Page {
    /// Creates the content from the bytes.
    make: fn(Vec<u8>) -> Result<Content, Loss>,
    file: Option<Box<dyn Read + Send>>,
    limit: usize,
}

impl Page {
    pub(super) fn new(file: Box<dyn Read + Send>, limit: usize) -> Page {
        Page {
            make: |bytes| utf8(bytes, 0).map(|page| Content::Text(html_to_text(&page))),
            file: Some(file),
            limit,
        }
    }
}

impl Page {
    /// Creates a reader that returns the raw page, for extraction.
    pub(super) fn raw(file: Box<dyn Read + Send>, limit: usize) -> Page {
        Page { make: |bytes| Ok(Content::Page { bytes, content_type: None }), file: Some(file), limit }
    }
}

impl Records for Page {
    fn step(&mut self) -> Step {
        let Some(file) = self.file.take() else { return Step::End };
        let mut bytes = Vec::new();
        if let Err(error) = file.take(self.limit as u64 + 1).read_to_end(&mut bytes) {
            return broken(error, String::new());
        }
        if bytes.len() > self.limit {
            let detail = format!("a page of more than {} bytes", self.limit);
            let bytes = bytes.len() as u64;
            return Step::Lost(Loss {
                reason: Reason::TooLarge,
                records: 1,
                bytes,
                place: String::new(),
                detail,
            });
        }
        match (self.make)(bytes) {
            Ok(content) => Step::Record(Raw { content, number: None, columns: Columns::new() }),
            Err(loss) => Step::Lost(loss),
        }
    }
}

/// Step for a read error: damage of a compressed file loses the text from `place` on.
fn broken(error: io::Error, place: String) -> Step {
    if error.kind() != io::ErrorKind::InvalidData {
        return Step::Failed(error);
    }
    let (reason, detail) = (packed::cause(&error), error.to_string());
    Step::Lost(Loss { reason, records: 1, bytes: 0, place, detail })
}
