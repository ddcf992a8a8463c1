//! The HTTP response inside a WARC record: head, and body without its transfer and content encodings.

use std::borrow::Cow;
use std::io::Read;

use crate::counters::Reason;

/// What the head of a response says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub status: u16,
    /// The whole `Content-Type`, lower case not applied.
    pub content_type: Option<String>,
    content_encoding: String,
    chunked: bool,
}

/// Splits a response into its head and its body as sent. A block without a head is no response.
pub(super) fn parse(block: &[u8]) -> Option<(Head, &[u8])> {
    let status_line = line_of(block);
    let rest = status_line.0.strip_prefix(b"HTTP/".as_slice())?;
    let mut words = rest.split(|&b| b == b' ').filter(|w| !w.is_empty()).skip(1);
    let status = words.next().and_then(|w| std::str::from_utf8(w).ok()).and_then(|w| w.parse().ok())?;
    let mut head = Head { status, ..Head::default() };
    let mut rest = status_line.1;
    loop {
        let (line, after) = line_of(rest);
        if line.is_empty() || after.len() == rest.len() {
            return Some((head, after));
        }
        rest = after;
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let value = String::from_utf8_lossy(&line[colon + 1..]).trim().to_string();
        match line[..colon].to_ascii_lowercase().as_slice() {
            b"content-type" => head.content_type = Some(value),
            b"content-encoding" => head.content_encoding = value.to_ascii_lowercase(),
            b"transfer-encoding" => head.chunked = value.to_ascii_lowercase().contains("chunked"),
            _ => {}
        }
    }
}

/// One line without its end, and what follows.
fn line_of(bytes: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'\n', bytes) {
        Some(end) => (bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]), &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

impl Head {
    /// The body without chunks and compression, at most `limit` bytes of it.
    ///
    /// Crawlers often store the decoded body and leave the header: what does not look encoded is taken as it is.
    ///
    /// # Errors
    /// [`Reason::TooLarge`] beyond the limit, [`Reason::BrokenRecord`] where nothing can be unpacked, with what is wrong.
    pub(super) fn body<'a>(&self, sent: &'a [u8], limit: usize) -> Result<Cow<'a, [u8]>, (Reason, String)> {
        let whole = match self.chunked.then(|| unchunk(sent)).flatten() {
            Some(joined) => Cow::Owned(joined),
            None => Cow::Borrowed(sent),
        };
        let unpacked = match self.content_encoding.as_str() {
            "gzip" | "x-gzip" if whole.starts_with(b"\x1f\x8b") => {
                unpack(flate2::read::MultiGzDecoder::new(&*whole), limit)
            }
            "deflate" if whole.first().is_some_and(|b| b & 0x0f == 8) => {
                unpack(flate2::read::ZlibDecoder::new(&*whole), limit)
            }
            "zstd" if whole.starts_with(b"\x28\xb5\x2f\xfd") => {
                zstd::Decoder::new(&*whole).map_err(|e| broken(&e)).and_then(|d| unpack(d, limit))
            }
            "br" if looks_binary(&whole) => {
                unpack(brotli_decompressor::Decompressor::new(&*whole, 4 << 10), limit)
            }
            _ => return Ok(whole),
        };
        unpacked.map(Cow::Owned)
    }
}

fn looks_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(512).any(|&b| b < 9 || (14..32).contains(&b))
}

fn broken(error: &std::io::Error) -> (Reason, String) {
    (Reason::BrokenRecord, format!("the body cannot be unpacked: {error}"))
}

fn unpack(decoder: impl Read, limit: usize) -> Result<Vec<u8>, (Reason, String)> {
    let mut out = Vec::new();
    let result = decoder.take(limit as u64 + 1).read_to_end(&mut out);
    match result {
        _ if out.len() > limit => {
            Err((Reason::TooLarge, format!("the body expands to more than {limit} bytes")))
        }
        // A page cut off by the crawler still has a beginning.
        Err(error) if out.is_empty() => Err(broken(&error)),
        _ => Ok(out),
    }
}

/// Joins chunks; `None` if the bytes are not chunked. A cut last chunk counts as far as it goes.
fn unchunk(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    loop {
        let (line, after) = line_of(rest);
        let size = line.split(|&b| b == b';').next().unwrap_or(&[]).trim_ascii();
        let parsed = std::str::from_utf8(size).ok().and_then(|s| usize::from_str_radix(s, 16).ok());
        let Some(size) = parsed else {
            // Anything but a size right at the start: the crawler has joined the chunks already.
            return (!out.is_empty()).then_some(out);
        };
        if size == 0 {
            return Some(out);
        }
        let take = size.min(after.len());
        out.extend_from_slice(&after[..take]);
        rest = &after[take..];
        rest = rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n")).unwrap_or(rest);
        if rest.is_empty() {
            return Some(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(response: &[u8]) -> Result<String, String> {
        let (head, sent) = parse(response).ok_or("no head")?;
        let text = |(reason, detail): (Reason, String)| format!("{reason}: {detail}");
        head.body(sent, 1000).map(|b| String::from_utf8_lossy(&b).into_owned()).map_err(text)
    }

    #[test]
    fn bodies_come_out_decoded() {
        assert_eq!(body(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nhello").as_deref(), Ok("hello"));
        assert_eq!(body(b"HTTP/1.0 404\n\nx").as_deref(), Ok("x"));
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        assert_eq!(body(chunked).as_deref(), Ok("abcde"));
        let joined = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n<p>not chunked";
        assert_eq!(body(joined).as_deref(), Ok("<p>not chunked"));
        let cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc";
        assert_eq!(body(cut).as_deref(), Ok("abc"));
        assert!(body(b"<html>").is_err());
        assert!(body(b"HTTP/1.1 ok\r\n\r\n").is_err());
    }

    #[test]
    fn packed_bodies_are_limited() {
        let mut packed = Vec::new();
        let mut gzip =
            flate2::read::GzEncoder::new(std::io::repeat(b'a').take(5000), flate2::Compression::best());
        gzip.read_to_end(&mut packed).unwrap();
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n";
        let response = [head.as_slice(), &packed].concat();
        let said = body(&response).unwrap_err();
        assert!(said.starts_with("too large") && said.contains("more than 1000"), "{said}");
        let torn =
            body(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\xff\xff\xff").unwrap_err();
        assert!(torn.starts_with("broken record: "), "{torn}");
        let (head, sent) = parse(&response).unwrap();
        assert_eq!(head.content_type.as_deref(), Some("text/html"));
        assert_eq!(head.body(sent, 5000).unwrap().len(), 5000);
        let (stored, plain) = parse(b"HTTP/1.1 200 OK\nContent-Encoding: gzip\n\n<p>plain").unwrap();
        assert_eq!(&*stored.body(plain, 99).unwrap(), b"<p>plain");
        let brotli = b"\x1b\xd4\x00\xf8\x9d\x09\x36\x2e\xa8\x77\xc7\x78\xc9\x23\x06\x57\x20\x74\xe5\x23\x97\x69\x6c\x6f\x31\x60\x24\x40\xc1\xfa\x00";
        let head = b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n".as_slice();
        assert_eq!(body(&[head, brotli].concat()).unwrap(), format!("<p>{}", "brotli ".repeat(30)));
        assert!(body(&[head, b"\x01\x02\x03"].concat()).unwrap_err().contains("cannot be unpacked"));
    }
}
