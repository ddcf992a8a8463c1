//! Decoding of a page's bytes: charset selection and validation.
//!
//! The order is that of browsers, with one exception: valid UTF-8 is UTF-8 whatever is declared, since that happens
//! by accident only for pure ASCII, where it makes no difference.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8};

use super::refusal::Refusal;

/// Bytes searched for a charset declaration; browsers look at 1024, real pages need more.
const PRESCAN: usize = 4096;
/// Maximum bytes passed to the detector.
const SAMPLE: usize = 256 << 10;
/// Up to one character in this many may be broken in a page with a declared charset (crawlers truncate pages inside a
/// character).
const BROKEN_SHARE: usize = 500;

/// Decodes `bytes`; also returns the name of the charset used. `content_type` is the HTTP header.
///
/// Sources are tried in this order: a byte order mark, strict UTF-8, the header, `<meta charset>`, and detection
/// (chardetng). A charset is accepted if the bytes are valid in it.
///
/// # Errors
/// [`Refusal::Binary`] for bytes that are not text, [`Refusal::UnknownCharset`] if no charset fits.
pub fn decode(bytes: &[u8], content_type: Option<&str>) -> Result<(String, &'static str), Refusal> {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return fitting(encoding, &bytes[mark..]).ok_or(Refusal::UnknownCharset);
    }
    let zeros = memchr::memchr_iter(0, &bytes[..bytes.len().min(SAMPLE)]).count();
    if zeros > 8 && zeros * 20 > bytes.len().min(SAMPLE) {
        return Err(Refusal::Binary);
    }
    let escapes = memchr::memchr(0x1b, bytes).is_some();
    if !escapes && let Ok(text) = std::str::from_utf8(bytes) {
        return Ok((text.to_string(), UTF_8.name()));
    }
    let header = content_type.and_then(|t| label_in(t.as_bytes()));
    let declared = [header, meta_label(&bytes[..bytes.len().min(PRESCAN)])];
    for label in declared.into_iter().flatten() {
        if let Some(found) = Encoding::for_label(label).and_then(|encoding| fitting(encoding, bytes)) {
            return Ok(found);
        }
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    let sample = &bytes[..bytes.len().min(SAMPLE)];
    detector.feed(sample, sample.len() == bytes.len());
    fitting(detector.guess(None, Utf8Detection::Allow), bytes).ok_or(Refusal::UnknownCharset)
}

/// Decodes if at most one character in [`BROKEN_SHARE`] is broken, or only the last one.
fn fitting(encoding: &'static Encoding, bytes: &[u8]) -> Option<(String, &'static str)> {
    let (text, broken) = encoding.decode_without_bom_handling(bytes);
    if broken {
        let marks = text.matches(char::REPLACEMENT_CHARACTER).count();
        if marks > 1 && marks * BROKEN_SHARE > text.len() {
            return None;
        }
    }
    Some((text.into_owned(), encoding.name()))
}

/// Value after `charset=` in a header or an attribute.
fn label_in(text: &[u8]) -> Option<&[u8]> {
    let lower = text.to_ascii_lowercase();
    let mut from = 0;
    while let Some(found) = memchr::memmem::find(&lower[from..], b"charset") {
        let rest = text[from + found + 7..].trim_ascii_start();
        from += found + 7;
        let Some(rest) = rest.strip_prefix(b"=") else { continue };
        let rest = rest.trim_ascii_start();
        let rest = rest.strip_prefix(b"\"").or_else(|| rest.strip_prefix(b"'")).unwrap_or(rest);
        let ends = |b: &u8| matches!(b, b'"' | b'\'' | b';' | b'>' | b'/' | b' ' | b'\t' | b'\r' | b'\n');
        let end = rest.iter().position(ends).unwrap_or(rest.len());
        return (end > 0).then_some(&rest[..end]);
    }
    None
}

/// Charset declared by a `<meta>` element. A declaration of UTF-16 in ASCII bytes must be wrong and is taken as
/// UTF-8.
fn meta_label(head: &[u8]) -> Option<&[u8]> {
    let lower = head.to_ascii_lowercase();
    let mut from = 0;
    while let Some(found) = memchr::memmem::find(&lower[from..], b"<meta") {
        let start = from + found;
        let end = memchr::memchr(b'>', &lower[start..]).map_or(lower.len(), |e| start + e);
        if let Some(label) = label_in(&head[start..end]) {
            let is_utf16 = label.to_ascii_lowercase().starts_with(b"utf-16");
            return Some(if is_utf16 { b"utf-8" } else { label });
        }
        from = start + 5;
    }
    let declaration =
        lower.starts_with(b"<?xml").then(|| memchr::memmem::find(&lower, b"encoding=")).flatten()?;
    let rest = &head[declaration + 9..];
    let rest = rest.strip_prefix(b"\"").or_else(|| rest.strip_prefix(b"'"))?;
    let end = rest.iter().position(|b| matches!(b, b'"' | b'\''))?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], header: Option<&str>, text: &str, charset: &str) {
        assert_eq!(decode(bytes, header), Ok((text.to_string(), charset_name(charset))));
    }

    fn charset_name(name: &str) -> &'static str {
        Encoding::for_label(name.as_bytes()).unwrap().name()
    }

    #[test]
    fn the_declared_charset_is_used_where_it_fits() {
        check("naïve".as_bytes(), Some("text/html; charset=iso-8859-1"), "naïve", "utf-8");
        check(b"na\xefve", Some("text/html; Charset=\"ISO-8859-1\""), "naïve", "windows-1252");
        check(b"<meta charset=koi8-r>\xd4\xc5", None, "<meta charset=koi8-r>те", "koi8-r");
        let meta = b"<META http-equiv=Content-Type content='text/html; charset=shift_jis'>\x83e";
        check(
            meta,
            None,
            "<META http-equiv=Content-Type content='text/html; charset=shift_jis'>テ",
            "shift_jis",
        );
        check(b"\xef\xbb\xbfa", None, "a", "utf-8");
        check(b"\xff\xfea\0b\0", None, "ab", "utf-16le");
        check(
            b"<?xml version='1.0' encoding='iso-8859-2'?>\xb3",
            None,
            "<?xml version='1.0' encoding='iso-8859-2'?>ł",
            "iso-8859-2",
        );
    }

    #[test]
    fn undeclared_charsets_are_detected() {
        let text = "Съешь же ещё этих мягких французских булок, да выпей чаю. ".repeat(4);
        let (bytes, encoding, _) = encoding_rs::WINDOWS_1251.encode(&text);
        assert_eq!(decode(&bytes, None), Ok((text, encoding.name())));
    }

    #[test]
    fn what_fits_nothing_is_refused() {
        assert_eq!(decode(&[0, 1, 2, 0].repeat(100), None), Err(Refusal::Binary));
        // A single truncated character at the end is accepted.
        let mut cut = "é".repeat(400).into_bytes();
        cut.pop();
        let (text, _) = decode(&cut, Some("text/html; charset=utf-8")).unwrap();
        assert!(text.starts_with("éé") && text.ends_with('\u{fffd}'));
        for bytes in [&b"<meta charset="[..], b"<meta charset=>\xff", b"<?xml encoding=\xfe", b"\x1b\xff"] {
            let _ = decode(bytes, Some("charset"));
        }
    }
}
