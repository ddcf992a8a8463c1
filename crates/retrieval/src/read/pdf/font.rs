//! From the codes of a font to characters and widths.

use std::collections::HashMap;

use hayro_cmap::{BfString, CMap};
use hayro_syntax::object::{Array, Dict, Name, Object, Stream};

/// Width of a glyph where the file has none, as a share of the size.
const WIDTH: f64 = 0.5;

/// A font, as far as text needs it.
#[derive(Default)]
pub(super) struct Font {
    /// The font's own map of codes to text.
    unicode: Option<CMap>,
    /// Names of glyphs that differ from the encoding.
    differences: HashMap<u32, char>,
    /// True for fonts whose codes have two bytes.
    wide: bool,
    widths: HashMap<u32, f64>,
    default_width: Option<f64>,
}

impl Font {
    /// Reads a font's dictionary.
    pub(super) fn of(dict: &Dict<'_>) -> Font {
        let map = dict.get::<Stream<'_>>("ToUnicode").and_then(|stream| decoded(&stream));
        let mut font = Font {
            unicode: map.and_then(|map| CMap::parse(&map, |_| None)),
            wide: dict.get::<Name<'_>>("Subtype").is_some_and(|kind| kind.as_str() == "Type0"),
            ..Font::default()
        };
        if font.wide {
            let inner =
                dict.get::<Array<'_>>("DescendantFonts").and_then(|fonts| fonts.iter::<Dict<'_>>().next());
            inner.iter().for_each(|inner| font.wide_widths(inner));
        } else {
            font.narrow(dict);
        }
        font
    }

    /// Reads widths and encoding of a font with codes of one byte.
    fn narrow(&mut self, dict: &Dict<'_>) {
        let first = dict.get::<u32>("FirstChar").unwrap_or(0);
        if let Some(widths) = dict.get::<Array<'_>>("Widths") {
            let widths = widths.iter::<f32>().take(256).map(|width| f64::from(width) / 1000.0);
            self.widths = (first..).zip(widths).collect();
        }
        let Some(encoding) = dict.get::<Dict<'_>>("Encoding") else { return };
        let Some(differences) = encoding.get::<Array<'_>>("Differences") else { return };
        let mut code = 0;
        for item in differences.iter::<Object<'_>>().take(1024) {
            match item {
                Object::Number(at) => code = u32::try_from(at.as_i64()).unwrap_or(0),
                Object::Name(name) => {
                    if let Some(c) = glyph(name.as_str()) {
                        self.differences.insert(code, c);
                    }
                    code += 1;
                }
                _ => {}
            }
        }
    }

    /// Reads the widths of a font with codes of two bytes: `[first [w ..] first last w ..]`.
    fn wide_widths(&mut self, dict: &Dict<'_>) {
        self.default_width = Some(dict.get::<f32>("DW").map_or(1.0, |width| f64::from(width) / 1000.0));
        let Some(widths) = dict.get::<Array<'_>>("W") else { return };
        let mut open: Vec<u32> = Vec::new();
        for item in widths.iter::<Object<'_>>().take(1 << 16) {
            match (item, open.as_slice()) {
                (Object::Array(each), [first]) => {
                    let each = each.iter::<f32>().take(1 << 16).map(|width| f64::from(width) / 1000.0);
                    self.widths.extend((*first..).zip(each));
                    open.clear();
                }
                (Object::Number(width), [first, last]) => {
                    let last = (*last).min(first.saturating_add(1 << 16));
                    self.widths.extend((*first..=last).map(|code| (code, width.as_f64() / 1000.0)));
                    open.clear();
                }
                (Object::Number(code), _) => open.push(u32::try_from(code.as_i64()).unwrap_or(0)),
                _ => open.clear(),
            }
        }
    }

    /// Bytes of a code.
    pub(super) fn code_bytes(&self) -> usize {
        1 + usize::from(self.wide)
    }

    /// Width of a glyph, as a share of the size.
    pub(super) fn width(&self, code: u32) -> f64 {
        self.widths.get(&code).copied().or(self.default_width).unwrap_or(WIDTH)
    }

    /// Writes the characters of a code.
    pub(super) fn write(&self, code: u32, text: &mut String) {
        let own = self.unicode.as_ref().and_then(|map| map.lookup_bf_string(code));
        match own {
            Some(BfString::Char(c)) => push(c, text),
            Some(BfString::String(all)) => all.chars().for_each(|c| push(c, text)),
            None if self.wide => {}
            None => match self.differences.get(&code) {
                Some(c) => push(*c, text),
                None => {
                    let byte = [u8::try_from(code).unwrap_or(b' ')];
                    let (c, _) = encoding_rs::WINDOWS_1252.decode_without_bom_handling(&byte);
                    c.chars().for_each(|c| push(c, text));
                }
            },
        }
    }
}

/// Writes a character; ligatures as their letters, control characters not at all.
fn push(c: char, text: &mut String) {
    match c {
        'ﬀ' => text.push_str("ff"),
        'ﬁ' => text.push_str("fi"),
        'ﬂ' => text.push_str("fl"),
        'ﬃ' => text.push_str("ffi"),
        'ﬄ' => text.push_str("ffl"),
        '\u{a0}' => text.push(' '),
        '\u{ad}' => {}
        c if c.is_control() => {}
        c => text.push(c),
    }
}

/// The character of a glyph's name.
fn glyph(name: &str) -> Option<char> {
    let hex = |digits: &str| u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
    let mut letters = name.chars();
    if let (Some(letter), None) = (letters.next(), letters.next()) {
        return Some(letter);
    }
    if let Some(digits) = name.strip_prefix("uni").filter(|digits| digits.len() >= 4) {
        return digits.get(..4).and_then(hex);
    }
    if let Some(digits) = name.strip_prefix('u').filter(|digits| digits.len() >= 4) {
        return hex(digits);
    }
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, c)| *c)
}

/// A stream's bytes.
fn decoded(stream: &Stream<'_>) -> Option<Vec<u8>> {
    stream.decoded().ok().map(|bytes| bytes.into_owned())
}

/// Names of the Adobe Glyph List that producers use most.
const NAMES: [(&str, char); 66] = [
    ("space", ' '),
    ("exclam", '!'),
    ("quotedbl", '"'),
    ("numbersign", '#'),
    ("dollar", '$'),
    ("percent", '%'),
    ("ampersand", '&'),
    ("quotesingle", '\''),
    ("parenleft", '('),
    ("parenright", ')'),
    ("asterisk", '*'),
    ("plus", '+'),
    ("comma", ','),
    ("hyphen", '-'),
    ("period", '.'),
    ("slash", '/'),
    ("zero", '0'),
    ("one", '1'),
    ("two", '2'),
    ("three", '3'),
    ("four", '4'),
    ("five", '5'),
    ("six", '6'),
    ("seven", '7'),
    ("eight", '8'),
    ("nine", '9'),
    ("colon", ':'),
    ("semicolon", ';'),
    ("less", '<'),
    ("equal", '='),
    ("greater", '>'),
    ("question", '?'),
    ("at", '@'),
    ("bracketleft", '['),
    ("backslash", '\\'),
    ("bracketright", ']'),
    ("underscore", '_'),
    ("braceleft", '{'),
    ("bar", '|'),
    ("braceright", '}'),
    ("asciitilde", '~'),
    ("quoteleft", '‘'),
    ("quoteright", '’'),
    ("quotedblleft", '“'),
    ("quotedblright", '”'),
    ("endash", '–'),
    ("emdash", '—'),
    ("bullet", '•'),
    ("ellipsis", '…'),
    ("fi", 'ﬁ'),
    ("fl", 'ﬂ'),
    ("ff", 'ﬀ'),
    ("ffi", 'ﬃ'),
    ("ffl", 'ﬄ'),
    ("germandbls", 'ß'),
    ("adieresis", 'ä'),
    ("odieresis", 'ö'),
    ("udieresis", 'ü'),
    ("eacute", 'é'),
    ("egrave", 'è'),
    ("agrave", 'à'),
    ("ccedilla", 'ç'),
    ("ntilde", 'ñ'),
    ("degree", '°'),
    ("minus", '−'),
    ("multiply", '×'),
];
