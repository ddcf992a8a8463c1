//! Text of a page: decoding of entities, collapsing of white space.

use markup5ever::data::NAMED_ENTITIES;

/// Optional break point in a word. Visible only at the end of a line; in extracted text it splits the word.
pub(super) const SOFT_HYPHEN: char = '\u{ad}';

/// Appends `raw` to `out` without soft hyphens, with character references decoded and runs of white space collapsed
/// (unless `verbatim`). A space is written first if `raw` starts with white space and `out` does not end with it.
pub(super) fn append(out: &mut String, raw: &str, verbatim: bool) {
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'&', rest.as_bytes()) {
        spaced(out, &rest[..at], verbatim);
        let (decoded, used) = reference(&rest[at..]);
        match decoded {
            DecodedReference::One(SOFT_HYPHEN) | DecodedReference::Two(SOFT_HYPHEN, _) => {}
            DecodedReference::One(c) if c.is_whitespace() => spaced(out, " ", verbatim),
            DecodedReference::One(c) => out.push(c),
            DecodedReference::Two(c, '\0') if c.is_whitespace() => spaced(out, " ", verbatim),
            DecodedReference::Two(c, second) => {
                out.push(c);
                out.extend(Some(second).filter(|&c| c != '\0'));
            }
            DecodedReference::Nothing => out.push_str(&rest[at..at + used]),
        }
        rest = &rest[at + used..];
    }
    spaced(out, rest, verbatim);
}

fn spaced(out: &mut String, text: &str, verbatim: bool) {
    if verbatim {
        out.extend(text.chars().filter(|c| !matches!(*c, '\0' | '\r' | SOFT_HYPHEN)));
        return;
    }
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        // Non-ASCII white space (no-break spaces and similar) starts with C2, E2 or E3.
        let plain = |b: &u8| *b > b' ' && !matches!(b, 0xc2 | 0xe2 | 0xe3);
        let word = bytes[at..].iter().position(|b| !plain(b)).unwrap_or(bytes.len() - at);
        out.push_str(&text[at..at + word]);
        at += word;
        let Some(c) = text[at..].chars().next() else { return };
        at += c.len_utf8();
        match c {
            '\0'..='\u{8}' | '\u{e}'..='\u{1f}' | SOFT_HYPHEN => {}
            c if c.is_whitespace() => {
                if !out.is_empty() && !out.ends_with([' ', '\n']) {
                    out.push(' ');
                }
            }
            c => out.push(c),
        }
    }
}

enum DecodedReference {
    One(char),
    /// The second is NUL if there is none.
    Two(char, char),
    Nothing,
}

/// Decodes the character reference at the start of `text`, which must begin with `&`; also returns its length in
/// bytes.
fn reference(text: &str) -> (DecodedReference, usize) {
    let bytes = text.as_bytes();
    if bytes.get(1) == Some(&b'#') {
        let (radix, from) = if matches!(bytes.get(2), Some(b'x' | b'X')) { (16, 3) } else { (10, 2) };
        let digits =
            bytes[from.min(bytes.len())..].iter().take_while(|b| (**b as char).is_digit(radix)).count();
        let end = from + digits;
        if digits == 0 {
            return (DecodedReference::Nothing, 1);
        }
        let used = end + usize::from(bytes.get(end) == Some(&b';'));
        let code = u32::from_str_radix(&text[from..end], radix).unwrap_or(u32::MAX);
        return (DecodedReference::One(numbered(code)), used);
    }
    const LONGEST: usize = 32;
    let length = bytes[1..].iter().take(LONGEST).take_while(|b| b.is_ascii_alphanumeric()).count();
    let name = &text[1..1 + length];
    if bytes.get(1 + length) == Some(&b';')
        && let Some(&(first, second)) = NAMED_ENTITIES.get(&text[1..length + 2])
        && let (Some(first), Some(second)) = (char::from_u32(first), char::from_u32(second))
        && first != '\0'
    {
        return (DecodedReference::Two(first, second), length + 2);
    }
    // A few legacy names are decoded without the semicolon, even before other letters.
    const OLD: [(&str, char); 10] = [
        ("nbsp", ' '),
        ("amp", '&'),
        ("lt", '<'),
        ("gt", '>'),
        ("quot", '"'),
        ("copy", '©'),
        ("reg", '®'),
        ("auml", 'ä'),
        ("ouml", 'ö'),
        ("uuml", 'ü'),
    ];
    match OLD.iter().find(|(old, _)| name.starts_with(old)) {
        Some((old, found)) => (DecodedReference::One(*found), old.len() + 1),
        None => (DecodedReference::Nothing, 1),
    }
}

/// Character for a number: the standard's table for C1 controls (which pages use as windows-1252), U+FFFD for
/// surrogates and invalid code points.
fn numbered(code: u32) -> char {
    const C1: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}',
        '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
    ];
    match code {
        0 => char::REPLACEMENT_CHARACTER,
        0x80..=0x9f => C1[(code - 0x80) as usize],
        _ => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}

/// Number of visible characters, as a measure of length: bytes that start a character and are not white space.
pub(super) fn count(raw: &str) -> u32 {
    raw.bytes().filter(|&b| b > b' ' && (b as i8) >= -0x40).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &str, text: &str) {
        let mut out = "x".to_string();
        append(&mut out, raw, false);
        assert_eq!(out, format!("x{text}"), "for {raw:?}");
    }

    #[test]
    fn text_is_decoded_and_spaced() {
        check("  a\n\tb ", " a b ");
        check("&amp;&lt;&eacute;&hellip;&#233;&#xe9;&#x80;", "&<é…éé€");
        check("&nbsp;&nbsp;a\u{a0}\u{2003}b", " a b");
        check("AT&T &unknown; & &; &#; &#x;", "AT&T &unknown; & &; &#; &#x;");
        check("&ampx &copy2020", "&x ©2020");
        check("&#xd800;&#9999999999;&#0;", "\u{fffd}\u{fffd}\u{fffd}");
        check("so\u{ad}ft\0 so&shy;ft so&#173;ft so&#xAD;ft", "soft soft soft soft");
        check("日本 語", "日本 語");
        let mut out = String::new();
        append(&mut out, " a  b\r\n&lt;", true);
        assert_eq!(out, " a  b\n<");
        append(&mut out, "so\u{ad}ft", true);
        assert_eq!(out, " a  b\n<soft");
    }
}
