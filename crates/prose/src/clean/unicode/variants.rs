//! Decoding of near-UTF-8: surrogates encoded as three bytes each (CESU-8), Java's overlong zero, bytes A0 that
//! became spaces, and lost continuation bytes.

use regex::bytes::{Captures, Regex};

/// Compiled byte patterns.
#[derive(Clone, Debug)]
pub(super) struct NearUtf8 {
    altered: Regex,
    lossy: Regex,
}

/// Sequences that would be UTF-8 if a space were the byte A0, for lead bytes for which the result is a likely
/// character.
const ALTERED: &str = r"(?-u)[\xc2\xc3\xc5\xce\xd0\xd9][ ]|[\xe2\xe3][ ][\x80-\x84\x86-\x9f\xa1-\xbf]|[\xe0-\xe3][\x80-\x84\x86-\x9f\xa1-\xbf][ ]|[\xf0][ ][\x80-\xbf][\x80-\xbf]|[\xf0][\x80-\xbf][ ][\x80-\xbf]|[\xf0][\x80-\xbf][\x80-\xbf][ ]";

/// Sequences with a lost byte, represented by 1A, or by at most one question mark.
const LOSSY: &str = r"(?-u)[\xc2-\xdf][\x1a]|[\xc2-\xc3][?]|\xed[\xa0-\xaf][\x1a?]\xed[\xb0-\xbf][\x1a?\x80-\xbf]|\xed[\xa0-\xaf][\x1a?\x80-\xbf]\xed[\xb0-\xbf][\x1a?]|[\xe0-\xef][\x1a?][\x1a\x80-\xbf]|[\xe0-\xef][\x1a\x80-\xbf][\x1a?]|[\xf0-\xf4][\x1a?][\x1a\x80-\xbf][\x1a\x80-\xbf]|[\xf0-\xf4][\x1a\x80-\xbf][\x1a?][\x1a\x80-\xbf]|[\xf0-\xf4][\x1a\x80-\xbf][\x1a\x80-\xbf][\x1a?]|\x1a";

impl NearUtf8 {
    pub(super) fn new() -> NearUtf8 {
        let compile = |pattern: &str| match Regex::new(pattern) {
            Ok(regex) => regex,
            Err(error) => panic!("pattern of bytes: {error}"),
        };
        NearUtf8 { altered: compile(ALTERED), lossy: compile(LOSSY) }
    }

    /// Turns spaces back into the byte A0 where that completes a character.
    pub(super) fn restore_a0(&self, bytes: Vec<u8>) -> Vec<u8> {
        if !self.altered.is_match(&bytes) {
            return bytes;
        }
        let bytes = a_grave_words(&bytes);
        let whole = |found: &Captures| -> Vec<u8> {
            found[0].iter().map(|&b| if b == b' ' { 0xa0 } else { b }).collect()
        };
        self.altered.replace_all(&bytes, whole).into_owned()
    }

    /// Replaces sequences that lost a byte by U+FFFD.
    pub(super) fn replace_lossy(&self, bytes: Vec<u8>) -> Vec<u8> {
        self.lossy.replace_all(&bytes, "\u{fffd}".as_bytes()).into_owned()
    }
}

/// C3 before a single space is the word "à" and keeps its space, unless a Portuguese contraction follows ("àquele",
/// "às").
fn a_grave_words(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(b"\xc3 ") {
            let next = &rest[2..];
            let joined: [&[u8]; 5] = [b" ", b"quele", b"quela", b"quilo", b"s "];
            if !joined.iter().any(|j| next.starts_with(j)) {
                out.extend_from_slice(b"\xc3\xa0 ");
                at += 2;
                continue;
            }
        }
        out.push(rest[0]);
        at += 1;
    }
    out
}

/// Decodes UTF-8 in which characters may be encoded as surrogate pairs of three bytes each or as C0 80; `None` for
/// other bytes.
pub(super) fn decode(bytes: Vec<u8>) -> Option<String> {
    if memchr::memchr2(0xed, 0xc0, &bytes).is_none() {
        return String::from_utf8(bytes).ok();
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match &bytes[at..] {
            [0xc0, 0x80, ..] => {
                out.push(0);
                at += 2;
            }
            [0xed, b @ 0xa0..=0xaf, c @ 0x80..=0xbf, 0xed, e @ 0xb0..=0xbf, f @ 0x80..=0xbf, ..] => {
                let part = |byte: u8, mask: u8, shift: u32| u32::from(byte & mask) << shift;
                let code = 0x10000 + part(*b, 15, 16) + part(*c, 63, 10) + part(*e, 15, 6) + part(*f, 63, 0);
                let mut buffer = [0; 4];
                out.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut buffer).as_bytes());
                at += 6;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).ok()
}
