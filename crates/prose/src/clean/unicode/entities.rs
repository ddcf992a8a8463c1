//! HTML entities in text that is not HTML: only unambiguous ones that end in a semicolon, and Latin letters whose
//! entity names were capitalized.

use html5gum::{Token, Tokenizer};
use memchr::memchr;
use std::borrow::Cow;

/// Replaces the entities in `text`.
pub(super) fn unescape(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let (mut done, mut from) = (0, 0);
    while let Some(skip) = memchr(b'&', &bytes[from..]) {
        let at = from + skip;
        from = at + 1;
        let Some(end) = entity_end(bytes, at) else { continue };
        if let Some(value) = decode(&text[at..end]) {
            out.push_str(&text[done..at]);
            out.push_str(&value);
            done = end;
        }
        from = end;
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

/// End of an entity `&name;` or `&#number;` that begins at `at`, with up to 24 letters and digits.
fn entity_end(bytes: &[u8], at: usize) -> Option<usize> {
    let from = at + 1 + usize::from(bytes.get(at + 1) == Some(&b'#'));
    let len = bytes[from..].iter().take(25).take_while(|b| b.is_ascii_alphanumeric()).count();
    let end = from + len;
    ((1..=24).contains(&len) && bytes.get(end) == Some(&b';')).then_some(end + 1)
}

fn decode(entity: &str) -> Option<String> {
    let name = &entity[1..entity.len() - 1];
    if let Some(number) = name.strip_prefix('#') {
        return numeric(number);
    }
    if let Some(value) = named(entity) {
        return Some(value);
    }
    // Only if the capitalized name has no meaning itself, not even as a prefix (&AMPX; begins with &AMP).
    let lower = entity.to_ascii_lowercase();
    let capitals = name.bytes().all(|b| !b.is_ascii_lowercase()) && lower != entity;
    if capitals && read(entity) == entity {
        return named(&lower).map(|value| value.to_uppercase());
    }
    None
}

/// Value of a name in HTML's table.
fn named(entity: &str) -> Option<String> {
    let value = read(entity);
    let whole = entity == "&semi;" || !value.contains(';');
    (whole && value != entity).then_some(value)
}

/// Decodes `entity` with an HTML tokenizer.
fn read(entity: &str) -> String {
    let mut out = Vec::new();
    for token in Tokenizer::new(entity) {
        let Ok(token) = token;
        if let Token::String(text) = token {
            out.extend_from_slice(&text);
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Numeric character reference, by HTML's rules; one that denotes `;` is kept, as in ftfy.
fn numeric(number: &str) -> Option<String> {
    let (digits, radix) = match number.strip_prefix(['x', 'X']) {
        Some(hex) => (hex, 16),
        None => (number, 10),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let code = u32::from_str_radix(digits, radix).unwrap_or(u32::MAX);
    let value = match code {
        0 => "\u{fffd}".to_string(),
        0x0d => "\r".to_string(),
        0x80..=0x9f => super::encodings::windows_1252(char::from_u32(code)?).to_string(),
        0x01..=0x08 | 0x0b | 0x0e..=0x1f | 0x7f | 0xfdd0..=0xfdef => String::new(),
        code if code & 0xfffe == 0xfffe && code <= 0x10_ffff => String::new(),
        code => char::from_u32(code).unwrap_or('\u{fffd}').to_string(),
    };
    (value != ";").then_some(value)
}
