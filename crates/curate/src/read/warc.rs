//! WARC 0.17 to 1.1, the format of web crawls: responses and resources as pages, `conversion` records (WET) as text.
//!
//! ISO 28500: a record is a version line, named fields, an empty line, `Content-Length` bytes and two line ends. A
//! record that breaks these rules is counted with its offset, and the reader searches for the next version line; in a
//! compressed file it continues at the next member, so that a wrong length costs one record.

use std::borrow::Cow;
use std::io::{self, BufRead};

use fathom_prose::extract::Content;

use super::http;
use super::packed::{self, Decompressor};
use super::record::Columns;
use super::records::{Loss, Raw, Records, Step};
use crate::counters::Reason;

/// Length at which a header line is truncated; the rest is skipped.
const LONGEST_LINE: usize = 64 << 10;
/// Limit of header fields; more are not a plausible header.
const MOST_FIELDS: usize = 1000;
/// Allowance for the HTTP header in addition to the largest page.
const HTTP_HEAD: u64 = 64 << 10;

/// Records of one file.
pub(super) struct Warc {
    input: Decompressor,
    limit: usize,
    record: u64,
    line: Vec<u8>,
    /// True between a broken record and the next version line.
    searching: bool,
}

/// Relevant header fields of a record.
#[derive(Default)]
struct Head {
    kind: String,
    length: Option<u64>,
    url: String,
    id: String,
    date: String,
    language: String,
    /// Type of the block; for a `resource` that of the page.
    block_type: String,
    payload_type: String,
    /// Member in which the record starts.
    member: u64,
    offset: u64,
}

/// Reason why there is no next record.
enum Trouble {
    Broken(Reason, String),
    Failed(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        match error.kind() {
            io::ErrorKind::InvalidData => Trouble::Broken(packed::cause(&error), error.to_string()),
            _ => Trouble::Failed(error),
        }
    }
}

fn broken(detail: impl Into<String>) -> Trouble {
    Trouble::Broken(Reason::BrokenRecord, detail.into())
}

impl Warc {
    pub(super) fn new(input: Decompressor, limit: usize) -> Warc {
        Warc { input, limit, record: 0, line: Vec::new(), searching: false }
    }

    /// Reads a line into `self.line`, without its end; false at the end of the file.
    fn read_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        let mut any = false;
        loop {
            let chunk = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if chunk.is_empty() {
                return Ok(any);
            }
            any = true;
            let end = memchr::memchr(b'\n', chunk);
            let taken = end.map_or(chunk.len(), |e| e + 1);
            let room = LONGEST_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&chunk[..taken.min(room)]);
            self.input.consume(taken);
            if end.is_some() {
                let kept = self.line.trim_ascii_end().len();
                self.line.truncate(kept);
                return Ok(true);
            }
        }
    }

    /// Reads the header of the next record; `None` at the end.
    fn head(&mut self) -> Result<Option<Head>, Trouble> {
        loop {
            // Fill the buffer first, so that the position is that of this record and not of the previous one.
            if self.input.fill_buf()?.is_empty() {
                return Ok(None);
            }
            let (member, offset) = (self.input.member(), self.input.offset());
            self.read_line()?;
            if self.line.is_empty() {
                continue;
            }
            if self.line.starts_with(b"WARC/") {
                self.searching = false;
                self.record += 1;
                return self.fields(Head { member, offset, ..Head::default() }).map(Some);
            }
            if !self.searching {
                self.record += 1;
                self.searching = true;
                return Err(broken("no version line where a record should start"));
            }
        }
    }

    fn fields(&mut self, mut head: Head) -> Result<Head, Trouble> {
        for _ in 0..MOST_FIELDS {
            if !self.read_line()? {
                return Err(broken("the file ends inside the head of a record"));
            }
            if self.line.is_empty() {
                return match head.length {
                    Some(_) => Ok(head),
                    None => Err(broken("a record without Content-Length")),
                };
            }
            let Some(colon) = memchr::memchr(b':', &self.line) else { continue };
            let value = String::from_utf8_lossy(&self.line[colon + 1..]).trim().to_string();
            match self.line[..colon].to_ascii_lowercase().as_slice() {
                b"warc-type" => head.kind = value.to_ascii_lowercase(),
                b"content-length" => match value.parse() {
                    Ok(length) => head.length = Some(length),
                    Err(_) => return Err(broken(format!("Content-Length is `{value}`"))),
                },
                b"warc-target-uri" => head.url = value.trim_matches(['<', '>']).to_string(),
                b"warc-record-id" => head.id = value.trim_matches(['<', '>']).to_string(),
                b"warc-date" => head.date = value,
                b"warc-identified-content-language" => head.language = value,
                b"content-type" => head.block_type = value,
                b"warc-identified-payload-type" => head.payload_type = value,
                _ => {}
            }
        }
        Err(broken(format!("more than {MOST_FIELDS} fields")))
    }

    /// Reads or skips the `length` bytes of the current record.
    fn block(&mut self, head: &Head, length: u64, keep: bool) -> Result<Vec<u8>, Trouble> {
        let mut block = Vec::with_capacity(if keep { length.min(1 << 20) as usize } else { 0 });
        let mut left = length;
        while left > 0 {
            match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.map(|_| ())?,
            }
            let same_member = self.input.member() == head.member;
            let chunk = self.input.fill_buf()?;
            let ready = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if ready == 0 || !same_member {
                return Err(broken(format!("{left} of {length} bytes are missing")));
            }
            if keep {
                block.extend_from_slice(&chunk[..ready]);
            }
            self.input.consume(ready);
            left -= ready as u64;
        }
        Ok(block)
    }

    fn next_record(&mut self) -> Result<Option<Step>, Trouble> {
        loop {
            let Some(head) = self.head()? else { return Ok(None) };
            let length = head.length.unwrap_or(0);
            let wanted = matches!(head.kind.as_str(), "response" | "conversion" | "resource");
            let fits = length <= self.limit as u64 + HTTP_HEAD;
            let block = self.block(&head, length, wanted && fits)?;
            if !wanted {
                continue;
            }
            let made = if fits {
                page(&head, block, self.limit)
            } else {
                Err((Reason::TooLarge, format!("{length} bytes, the limit is {}", self.limit)))
            };
            return Ok(Some(match made {
                Ok((content, columns)) => Step::Record(Raw { content, number: Some(self.record), columns }),
                Err((reason, detail)) => self.lost(reason, length, head.offset, detail),
            }));
        }
    }

    fn lost(&self, reason: Reason, bytes: u64, offset: u64, detail: String) -> Step {
        let place = format!("record {}, byte {offset}", self.record);
        Step::Lost(Loss { reason, records: 1, bytes, place, detail })
    }
}

impl Records for Warc {
    fn step(&mut self) -> Step {
        match self.next_record() {
            Ok(Some(step)) => step,
            Ok(None) => Step::End,
            Err(Trouble::Failed(error)) => Step::Failed(error),
            Err(Trouble::Broken(reason, detail)) => {
                let offset = self.input.offset();
                let step = self.lost(reason, 0, offset, detail);
                self.searching = true;
                // For archives resynchronize for either reason: before its header is read, a record cannot be too
                // large.
                if matches!(reason, Reason::BrokenArchive | Reason::TooLarge) {
                    match self.input.resync() {
                        Ok(_) => {}
                        Err(error) => return Step::Failed(error),
                    }
                }
                step
            }
        }
    }
}

/// Content of a record, or the reason why it has none.
fn page(head: &Head, block: Vec<u8>, limit: usize) -> Result<(Content, Columns), (Reason, String)> {
    let mut columns = vec![("url".to_string(), head.url.clone()), ("warc_id".to_string(), head.id.clone())];
    let mut put = |name: &str, value: &str| {
        if !value.is_empty() {
            columns.push((name.to_string(), value.to_string()));
        }
    };
    put("date", &head.date);
    if head.kind == "conversion" {
        put("language", &head.language);
        let text = String::from_utf8(block).map_err(|e| (Reason::InvalidUtf8, e.utf8_error().to_string()))?;
        return Ok((Content::Text(text), columns));
    }
    let response = match head.kind.as_str() {
        "resource" => None,
        _ => Some(http::parse(&block).ok_or((Reason::BrokenRecord, "not an HTTP response".to_string()))?),
    };
    if let Some((response, _)) = response.as_ref().filter(|(response, _)| response.status != 200) {
        return Err((Reason::OtherStatus, format!("status {}", response.status)));
    }
    // A resource is the page itself, and its record declares the type.
    let declared = match &response {
        Some((response, _)) => response.content_type.clone(),
        None => Some(head.block_type.clone()),
    };
    let declared = declared.filter(|t| !t.is_empty());
    let kind =
        if head.payload_type.is_empty() { declared.as_deref().unwrap_or("") } else { &head.payload_type };
    put("content_type", kind);
    let other = || (Reason::OtherType, format!("content type `{kind}`"));
    // Checked before decoding: an undecodable image is not damage.
    if !kind.is_empty() && !is_page_type(kind) {
        return Err(other());
    }
    let bytes = match &response {
        Some((response, sent)) => response.body(sent, limit)?,
        None => Cow::Borrowed(block.as_slice()),
    };
    if kind.is_empty() && !begins_as_page(&bytes) {
        return Err(other());
    }
    let bytes = bytes.into_owned();
    Ok((Content::Page { bytes, content_type: declared }, columns))
}

/// Returns true for HTML media types.
fn is_page_type(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    matches!(kind.as_str(), "text/html" | "application/xhtml+xml" | "application/vnd.wap.xhtml+xml")
}

/// Returns true if the first bytes of a body without declared type look like HTML.
fn begins_as_page(bytes: &[u8]) -> bool {
    let start = bytes[..bytes.len().min(1024)].to_ascii_lowercase();
    [b"<html".as_slice(), b"<!doctype html", b"<body", b"<head"]
        .iter()
        .any(|tag| memchr::memmem::find(&start, tag).is_some())
}
