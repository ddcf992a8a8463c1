//! Text files that are not UTF-8: UTF-16 is recognized by its byte order mark, other charsets by their bytes.

use std::io::{self, Read};

use encoding_rs::{Decoder, Encoding, UTF_16BE, UTF_16LE};
use fathom_prose::extract::charset::decode;

use super::records::Loss;
use crate::counters::Reason;

fathom_base::choice! {
    /// Treatment of text that is not UTF-8.
    pub enum Charset {
        /// Its charset is detected, as that of pages; the column `charset` has its name.
        Detect = "detect",
        /// The text is dropped and counted.
        Utf8 = "utf-8",
    }
}

/// Bytes per read.
const CHUNK: usize = 16 << 10;

/// Transcodes a UTF-16 file to UTF-8; passes any other file through unchanged.
pub(super) struct Transcoder {
    file: Box<dyn Read + Send>,
    /// True once the beginning has been examined.
    started: bool,
    from: Option<(&'static Encoding, Decoder)>,
    /// Bytes to output first.
    ready: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Transcoder {
    /// Transcodes the file if it begins with a UTF-16 byte order mark.
    pub(super) fn by_mark(file: Box<dyn Read + Send>) -> Transcoder {
        Transcoder { file, started: false, from: None, ready: Vec::new(), at: 0, ended: false }
    }

    /// Passes the file through unchanged.
    pub(super) fn never(file: Box<dyn Read + Send>) -> Transcoder {
        Transcoder { started: true, ..Transcoder::by_mark(file) }
    }

    /// Name of the charset that the file was transcoded from.
    pub(super) fn charset(&self) -> Option<&'static str> {
        self.from.as_ref().map(|(encoding, _)| encoding.name())
    }

    fn begin(&mut self) -> io::Result<()> {
        (&mut self.file).take(2).read_to_end(&mut self.ready)?;
        let encoding = match self.ready.as_slice() {
            b"\xff\xfe" => UTF_16LE,
            b"\xfe\xff" => UTF_16BE,
            _ => return Ok(()),
        };
        self.ready.clear();
        self.from = Some((encoding, encoding.new_decoder_without_bom_handling()));
        Ok(())
    }
}

impl Read for Transcoder {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !std::mem::replace(&mut self.started, true) {
            self.begin()?;
        }
        while self.at == self.ready.len() && !self.ended {
            let Some((_, decoder)) = &mut self.from else { return self.file.read(into) };
            let mut bytes = [0; CHUNK];
            let count = self.file.read(&mut bytes)?;
            self.ended = count == 0;
            let room = decoder.max_utf8_buffer_length(count).unwrap_or(4 * CHUNK);
            let mut text = String::with_capacity(room);
            let _ = decoder.decode_to_string(&bytes[..count], &mut text, self.ended);
            (self.ready, self.at) = (text.into_bytes(), 0);
        }
        let count = into.len().min(self.ready.len() - self.at);
        into[..count].copy_from_slice(&self.ready[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Decodes `bytes` at `offset` of their file; also returns the name of their charset if it is not UTF-8.
///
/// # Errors
/// UTF-8 with invalid sequences is lost, since any other charset would garble its valid characters; so is text that
/// fits no charset.
pub(super) fn detected(bytes: Vec<u8>, offset: u64) -> Result<(String, Option<&'static str>), Loss> {
    if is_utf8(&bytes) {
        return utf8(bytes, offset).map(|text| (text, None));
    }
    decode(&bytes, None).map(|(text, name)| (text, Some(name))).map_err(|refusal| Loss {
        reason: refusal.into(),
        records: 1,
        bytes: bytes.len() as u64,
        place: format!("byte {offset} and after"),
        detail: String::new(),
    })
}

/// Returns true if bytes are UTF-8 with at most a few invalid sequences; valid multi-byte sequences are rare in other
/// charsets.
fn is_utf8(bytes: &[u8]) -> bool {
    let (mut whole, mut broken) = (0usize, 0usize);
    for chunk in bytes.utf8_chunks() {
        whole += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        broken += usize::from(!chunk.invalid().is_empty());
    }
    broken == 0 || whole > 4 * broken
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Decodes `bytes`, which start at `offset` of their file; removes a byte order mark at the very start.
pub(super) fn utf8(mut bytes: Vec<u8>, offset: u64) -> Result<String, Loss> {
    let mark = if offset == 0 && bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    bytes.drain(..mark);
    String::from_utf8(bytes).map_err(|error| {
        let at = offset + (mark + error.utf8_error().valid_up_to()) as u64;
        let (bytes, place) = (error.as_bytes().len() as u64, format!("byte {at}"));
        Loss { reason: Reason::InvalidUtf8, records: 1, bytes, place, detail: String::new() }
    })
}
