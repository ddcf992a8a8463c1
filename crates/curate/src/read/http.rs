//! The HTTP response inside a WARC record: head, and body without its transfer and content encodings.

use std::borrow::Cow;
use std::io::{self, Read};

use flate2::{Decompress, FlushDecompress, Status};

use crate::counters::Reason;

/// Reason why a body is lost, with details.
type BodyLoss = (Reason, String);

const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// Relevant parts of a response's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub status: u16,
    /// Complete `Content-Type`, with its original case.
    pub content_type: Option<String>,
    content_encoding: String,
    chunked: bool,
}

/// Splits a response into its head and its body as sent; `None` for a block without a head.
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
            // Repeated headers are equivalent to one comma-separated list.
            b"content-encoding" => head.content_encoding += &format!(",{}", value.to_ascii_lowercase()),
            b"transfer-encoding" => head.chunked = value.to_ascii_lowercase().contains("chunked"),
            _ => {}
        }
    }
}

/// First line without its end, and the rest.
fn line_of(bytes: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'\n', bytes) {
        Some(end) => (bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]), &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

impl Head {
    /// Body without chunking and compression, limited to `limit` bytes.
    ///
    /// Crawlers often store the decoded body but keep the header, so a body that is already text is returned
    /// unchanged.
    ///
    /// # Errors
    /// [`Reason::TooLarge`] beyond the limit, [`Reason::BrokenRecord`] with details if a body is neither text nor
    /// encoded as its header claims.
    pub(super) fn body<'a>(&self, sent: &'a [u8], limit: usize) -> Result<Cow<'a, [u8]>, BodyLoss> {
        let mut body = match self.chunked.then(|| unchunk(sent)).flatten() {
            Some(joined) => Cow::Owned(joined),
            None => Cow::Borrowed(sent),
        };
        // The coding applied last is listed last.
        for coding in self.content_encoding.rsplit(',') {
            if let Some(plain) = decoded(coding.trim(), &body, limit)? {
                body = Cow::Owned(plain);
            }
        }
        Ok(body)
    }
}

/// Removes one content coding from a body; `None` if the body does not have it.
fn decoded(coding: &str, body: &[u8], limit: usize) -> Result<Option<Vec<u8>>, BodyLoss> {
    match coding {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" if body.starts_with(GZIP) => gunzip(body, limit).map(Some),
        "zstd" if body.starts_with(ZSTD) => {
            let decoder = zstd::Decoder::new(body).map_err(|e| broken(&e))?;
            unpack(decoder, Vec::new(), limit).map(Some)
        }
        "deflate" => inflate(body, limit),
        "br" if looks_binary(body) => {
            let decoder = brotli_decompressor::Decompressor::new(body, 4 << 10);
            unpack(decoder, Vec::new(), limit).map(Some)
        }
        _ if looks_binary(body) => Err(broken(&format!("it is not `{coding}`"))),
        _ => Ok(None),
    }
}

/// Returns true if bytes are not text: control characters near the beginning, except those of UTF-16 with a byte
/// order mark and the escape that switches charsets.
fn looks_binary(bytes: &[u8]) -> bool {
    let control = |&b: &u8| b < 9 || ((14..32).contains(&b) && b != 0x1b);
    let wide = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
    !wide && bytes.iter().take(512).any(control)
}

fn broken(error: &impl std::fmt::Display) -> BodyLoss {
    (Reason::BrokenRecord, format!("the body cannot be unpacked: {error}"))
}

fn too_large(limit: usize) -> BodyLoss {
    (Reason::TooLarge, format!("the body expands to more than {limit} bytes"))
}

/// Appends the output of `decoder` to `out`.
fn unpack(decoder: impl Read, mut out: Vec<u8>, limit: usize) -> Result<Vec<u8>, BodyLoss> {
    let room = (limit + 1).saturating_sub(out.len()) as u64;
    match decoder.take(room).read_to_end(&mut out) {
        _ if out.len() > limit => Err(too_large(limit)),
        // A page truncated by the crawler still has a usable beginning.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !out.is_empty() => Ok(out),
        Err(error) => Err(broken(&error)),
        Ok(_) => Ok(out),
    }
}

/// Decodes consecutive members; like browsers, ignores data after the last one.
fn gunzip(mut packed: &[u8], limit: usize) -> Result<Vec<u8>, BodyLoss> {
    let mut out = Vec::new();
    while packed.starts_with(GZIP) {
        let mut member = flate2::bufread::GzDecoder::new(packed);
        out = unpack(&mut member, out, limit)?;
        packed = member.into_inner();
    }
    Ok(out)
}

/// Decodes a `deflate` body: RFC 9110 literally requires the zlib format, many servers send the bare stream, and
/// browsers accept both. `None` for text.
fn inflate(body: &[u8], limit: usize) -> Result<Option<Vec<u8>>, BodyLoss> {
    let binary = looks_binary(body);
    // RFC 1950: the method is 8, and the first two bytes are divisible by 31.
    let has_head =
        body.len() > 1 && body[0] & 0x0f == 8 && u16::from_be_bytes([body[0], body[1]]).is_multiple_of(31);
    let zlib = if has_head { Some(InflateOutput::of(body, true, limit)) } else { None };
    match zlib {
        // Its checksum is correct, whatever follows it.
        Some(Ok(InflateOutput { bytes, left: Some(_) })) => return Ok(Some(bytes)),
        Some(Ok(InflateOutput { bytes, left: None })) if binary && !bytes.is_empty() => {
            return Ok(Some(bytes));
        }
        Some(Err(lost @ (Reason::TooLarge, _))) => return Err(lost),
        _ => {}
    }
    match InflateOutput::of(body, false, limit) {
        // A few bytes of text may form a valid stream by chance, but never the whole text.
        Ok(InflateOutput { bytes, left: Some(left) }) if left <= MOST_BEHIND => Ok(Some(bytes)),
        // Truncated by the crawler.
        Ok(InflateOutput { bytes, left: None }) if binary && !bytes.is_empty() => Ok(Some(bytes)),
        _ if !binary => Ok(None),
        Err(lost) => Err(lost),
        Ok(_) => Err(broken(&"it is no stream of `deflate`")),
    }
}

/// Bytes allowed after a stream: a checksum whose header is missing, line ends.
const MOST_BEHIND: usize = 8;

/// Output of a deflate stream.
struct InflateOutput {
    bytes: Vec<u8>,
    /// Number of bytes after its end; `None` if the end is missing.
    left: Option<usize>,
}

impl InflateOutput {
    fn of(packed: &[u8], has_head: bool, limit: usize) -> Result<InflateOutput, BodyLoss> {
        let (mut inflater, mut bytes) = (Decompress::new(has_head), Vec::new());
        loop {
            bytes.reserve(16 << 10);
            let taken = usize::try_from(inflater.total_in()).unwrap_or(packed.len()).min(packed.len());
            let rest = &packed[taken..];
            let status =
                inflater.decompress_vec(rest, &mut bytes, FlushDecompress::None).map_err(|e| broken(&e))?;
            let left = packed.len() - usize::try_from(inflater.total_in()).unwrap_or(packed.len());
            if bytes.len() > limit {
                return Err(too_large(limit));
            }
            if status == Status::StreamEnd {
                return Ok(InflateOutput { bytes, left: Some(left) });
            }
            // Output space is left, so the decoder is waiting for more input.
            if left == 0 && bytes.len() < bytes.capacity() {
                return Ok(InflateOutput { bytes, left: None });
            }
        }
    }
}

/// Joins chunks; `None` if the bytes are not chunked. A truncated last chunk is included as far as it goes.
fn unchunk(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    loop {
        let (line, after) = line_of(rest);
        let size = line.split(|&b| b == b';').next().unwrap_or(&[]).trim_ascii();
        let parsed = std::str::from_utf8(size).ok().and_then(|s| usize::from_str_radix(s, 16).ok());
        let Some(size) = parsed else {
            // No chunk size at the very start: the crawler has already joined the chunks.
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

    /// A response whose header claims a coding for its body.
    fn sent(coding: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n\r\n").as_bytes(), body].concat()
    }

    #[test]
    fn deflate_is_zlib_or_a_bare_stream() {
        let page = format!("<p>{}", "a page of some words, ".repeat(20));
        let read = |packed: &mut dyn Read| {
            let mut out = Vec::new();
            packed.read_to_end(&mut out).unwrap();
            out
        };
        for level in [0, 1, 9].map(flate2::Compression::new) {
            let raw = read(&mut flate2::read::DeflateEncoder::new(page.as_bytes(), level));
            let zlib = read(&mut flate2::read::ZlibEncoder::new(page.as_bytes(), level));
            for packed in [&raw, &zlib] {
                assert_eq!(body(&sent("deflate", packed)).as_deref(), Ok(&*page), "{level:?}");
                let behind = [packed.as_slice(), b"\r\n"].concat();
                assert_eq!(body(&sent("Deflate", &behind)).as_deref(), Ok(&*page), "{level:?}");
            }
            let cut = body(&sent("deflate", &zlib[..zlib.len() - 9])).unwrap();
            assert!(page.starts_with(&cut) && cut.len() > 3, "{cut}");
            let twice = read(&mut flate2::read::GzEncoder::new(raw.as_slice(), level));
            assert_eq!(body(&sent("deflate, gzip", &twice)).as_deref(), Ok(&*page));
        }
        let long = "b".repeat(5000);
        let raw = read(&mut flate2::read::DeflateEncoder::new(long.as_bytes(), flate2::Compression::best()));
        assert!(body(&sent("deflate", &raw)).unwrap_err().starts_with("too large"));
        // Stored without the claimed coding, as by many crawlers.
        for text in [page.as_str(), "{\"a\": 1}", "see", "K", "", "\u{1b}$B%&%'%V\u{1b}(B"] {
            for coding in ["deflate", "gzip", "br", "zstd", "identity", "x-unheard-of"] {
                assert_eq!(body(&sent(coding, text.as_bytes())).as_deref(), Ok(text), "{coding}");
            }
        }
    }

    #[test]
    fn what_does_not_decode_is_no_body() {
        let noise: Vec<u8> = (0..400u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for coding in ["deflate", "gzip", "br", "zstd", "compress"] {
            let said = body(&sent(coding, &noise)).unwrap_err();
            assert!(said.starts_with("broken record: the body cannot be unpacked"), "{coding}: {said}");
        }
        let mut packed = Vec::new();
        let page = "<p>a page of some words".repeat(30);
        flate2::read::GzEncoder::new(page.as_bytes(), flate2::Compression::fast())
            .read_to_end(&mut packed)
            .unwrap();
        let checksum = packed.len() - 6;
        packed[checksum] ^= 1;
        assert!(body(&sent("gzip", &packed)).unwrap_err().starts_with("broken record"));
    }
}
