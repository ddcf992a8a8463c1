//! Context-free repairs of single characters, one function each.

use super::encodings::windows_1252;
use super::options::UnicodeOptions;
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;

/// Returns true if a repair requested in `o` could change a character of `text`. Entities, mojibake, normal forms and
/// ASCII controls are checked elsewhere.
pub(super) fn any(text: &str, o: &UnicodeOptions) -> bool {
    text.chars().any(|c| {
        !c.is_ascii()
            && (o.fix_c1_controls && is_c1(c)
                || o.fix_latin_ligatures && ligature(c).is_some()
                || o.fix_character_width && is_wide(c)
                || o.uncurl_quotes && straight(c).is_some()
                || o.fix_line_breaks && matches!(c, '\u{2028}' | '\u{2029}' | '\u{85}')
                || o.remove_control_chars && is_control(c))
    })
}

/// Applies all repairs requested in `o`, in ftfy's order.
pub(super) fn all<'a>(text: Cow<'a, str>, o: &UnicodeOptions) -> Cow<'a, str> {
    let mut text = text;
    if o.fix_c1_controls {
        text = c1_controls(text);
    }
    if o.fix_latin_ligatures {
        text = replace(text, |c| ligature(c).is_some(), |c, out| out.push_str(ligature(c).unwrap_or("")));
    }
    if o.fix_character_width {
        text = replace(text, is_wide, |c, out| match c {
            '\u{3000}' => out.push(' '),
            c => out.extend(std::iter::once(c).nfkc()),
        });
    }
    if o.uncurl_quotes {
        text = replace(text, |c| straight(c).is_some(), |c, out| out.extend(straight(c)));
    }
    if o.fix_line_breaks {
        text = line_breaks(text);
    }
    if o.remove_terminal_escapes {
        text = terminal_escapes(text);
    }
    if o.remove_control_chars {
        text = replace(text, is_control, |_, _| {});
    }
    text
}

/// Replaces the characters for which `wanted` returns true.
fn replace<'a>(
    text: Cow<'a, str>,
    wanted: impl Fn(char) -> bool,
    write: impl Fn(char, &mut String),
) -> Cow<'a, str> {
    let Some(first) = text.find(&wanted) else { return text };
    let mut out = String::with_capacity(text.len());
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        if wanted(c) { write(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

fn is_c1(c: char) -> bool {
    matches!(c, '\u{80}'..='\u{9f}')
}

/// Reads C1 controls as Windows-1252.
pub(super) fn c1_controls(text: Cow<'_, str>) -> Cow<'_, str> {
    replace(text, is_c1, |c, out| out.push(windows_1252(c)))
}

/// Reads Latin-1 text as strict Windows-1252; `None` if it contains a byte undefined there.
pub(super) fn latin1_as_windows_1252(text: &str) -> Option<String> {
    text.chars()
        .map(|c| match c {
            c if is_c1(c) => Some(windows_1252(c)).filter(|&read| read != c),
            c => Some(c),
        })
        .collect()
}

fn ligature(c: char) -> Option<&'static str> {
    Some(match c {
        'Ĳ' => "IJ",
        'ĳ' => "ij",
        'ŉ' => "ʼn",
        'Ǳ' => "DZ",
        'ǲ' => "Dz",
        'ǳ' => "dz",
        'Ǆ' => "DŽ",
        'ǅ' => "Dž",
        'ǆ' => "dž",
        'Ǉ' => "LJ",
        'ǈ' => "Lj",
        'ǉ' => "lj",
        'Ǌ' => "NJ",
        'ǋ' => "Nj",
        'ǌ' => "nj",
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬅ' => "ſt",
        'ﬆ' => "st",
        _ => return None,
    })
}

/// Fullwidth and halfwidth forms that have a normal form, and the ideographic space.
fn is_wide(c: char) -> bool {
    match c {
        '\u{3000}' => true,
        '\u{ff01}'..='\u{ffef}' => !std::iter::once(c).nfkc().eq(std::iter::once(c)),
        _ => false,
    }
}

fn straight(c: char) -> Option<char> {
    match c {
        '\u{2bc}' | '\u{2018}'..='\u{201b}' => Some('\''),
        '\u{201c}'..='\u{201f}' => Some('"'),
        _ => None,
    }
}

/// Invisible controls, except white space and joiners.
pub(crate) fn is_control(c: char) -> bool {
    matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{206a}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffc}')
}

fn line_breaks(text: Cow<'_, str>) -> Cow<'_, str> {
    let text = if text.contains("\r\n") { Cow::Owned(text.replace("\r\n", "\n")) } else { text };
    replace(text, |c| matches!(c, '\r' | '\u{2028}' | '\u{2029}' | '\u{85}'), |_, out| out.push('\n'))
}

/// Removes `ESC [ digits ; letter`.
fn terminal_escapes(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains("\u{1b}[") {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some(at) = rest.find("\u{1b}[") {
        let after = &rest[at + 2..];
        let letter = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        match letter.as_bytes().first() {
            Some(b) if b.is_ascii_alphabetic() => {
                out.push_str(&rest[..at]);
                rest = &letter[1..];
            }
            _ => {
                out.push_str(&rest[..at + 2]);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}
