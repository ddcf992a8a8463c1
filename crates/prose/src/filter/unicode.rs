//! Character classes of Python's `str` methods, so that thresholds published for Python have the same meaning here.

/// Python's `str.isspace` for one character: the Unicode property White_Space and the four ASCII separators U+001C to
/// U+001F.
pub fn is_space(c: char) -> bool {
    match c {
        '\t'..='\r' | '\u{1c}'..=' ' => true,
        c if c.is_ascii() => false,
        c => c.is_whitespace(),
    }
}

/// Removes leading and trailing [`is_space`] characters (Python's `str.strip`).
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Returns true if `c` belongs to a script without spaces between words: Han, Kana, Thai, Lao, Burmese, Khmer.
pub(crate) fn is_unspaced(c: char) -> bool {
    matches!(
        c,
        '\u{e00}'..='\u{eff}'
            | '\u{1000}'..='\u{109f}'
            | '\u{1780}'..='\u{17ff}'
            | '\u{3005}'..='\u{3007}'
            | '\u{3041}'..='\u{30ff}'
            | '\u{31f0}'..='\u{31ff}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{a9e0}'..='\u{a9ff}'
            | '\u{aa60}'..='\u{aa7f}'
            | '\u{f900}'..='\u{faff}'
            | '\u{ff66}'..='\u{ff9f}'
            | '\u{20000}'..='\u{3ffff}'
    )
}

/// Returns true if `byte` is a single-byte white space character.
pub(crate) const fn is_ascii_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1c..=b' ')
}

/// Length in bytes of a multi-byte white space character at the start of `bytes`; 0 if there is none.
pub(crate) fn wide_space(bytes: &[u8]) -> usize {
    match bytes {
        [0xc2, 0x85 | 0xa0, ..] => 2,
        [0xe1, 0x9a, 0x80, ..] | [0xe2, 0x81, 0x9f, ..] | [0xe3, 0x80, 0x80, ..] => 3,
        [0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf, ..] => 3,
        _ => 0,
    }
}

/// Number of characters in valid UTF-8 `bytes`: bytes that do not continue a character.
pub(crate) fn count_chars(bytes: &[u8]) -> usize {
    count(bytes, |b| (b as i8) >= -0x40)
}

/// Number of bytes for which `wanted` returns true. The inner loop adds bytes in blocks that cannot overflow, which
/// the compiler vectorizes.
#[inline]
pub(crate) fn count(bytes: &[u8], wanted: impl Fn(u8) -> bool) -> usize {
    let mut total = 0usize;
    for block in bytes.chunks(255) {
        let mut sum = 0u8;
        for &b in block {
            sum = sum.wrapping_add(u8::from(wanted(b)));
        }
        total += usize::from(sum);
    }
    total
}

/// Lines as in Python's `str.splitlines`, without their ends.
pub(crate) fn split_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.char_indices().find(|&(_, c)| is_line_end(c));
        let Some((at, c)) = end else {
            return Some(std::mem::take(&mut rest));
        };
        let line = &rest[..at];
        let mut next = at + c.len_utf8();
        if c == '\r' && rest[next..].starts_with('\n') {
            next += 1;
        }
        rest = &rest[next..];
        Some(line)
    })
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_spaces_are_those_of_is_space() {
        for c in (0x80u32..0x11_0000).filter_map(char::from_u32) {
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).as_bytes();
            assert_eq!(wide_space(bytes) > 0, is_space(c), "{:x}", c as u32);
        }
        for b in 0..128u8 {
            assert_eq!(is_ascii_space(b), is_space(b as char), "{b:x}");
        }
    }

    #[test]
    fn lines_end_where_python_ends_them() {
        let lines: Vec<&str> = split_lines("a\r\nb\rc\u{2028}d\n\ne\n").collect();
        assert_eq!(lines, ["a", "b", "c", "d", "", "e"]);
        assert_eq!(split_lines("").count(), 0);
    }

    #[test]
    fn counting_survives_long_blocks() {
        let text = "é".repeat(1000);
        assert_eq!(count_chars(text.as_bytes()), 1000);
        assert_eq!(count(&vec![b'x'; 100_000], |b| b == b'x'), 100_000);
    }
}
