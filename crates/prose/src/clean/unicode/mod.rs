//! Unicode repair compatible with ftfy 6: mojibake, entities, terminal escapes, controls, ligatures, character
//! widths, quotes, line breaks, normal forms.
//!
//! A single scan over the bytes decides if anything could need repair; text that needs none is returned as it is.
//! Otherwise every line is repaired until it no longer changes, as in ftfy.

mod badness;
mod classes;
mod encodings;
mod entities;
mod options;
mod simple;
mod variants;

pub use options::{Normalization, Unescape, UnicodeOptions};

use badness::Detectors;
use encodings::Codec;
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;
use variants::NearUtf8;

/// Maximum number of repair rounds per line. Natural text needs three; adversarial input such as `&amp;amp;amp;..`,
/// for which ftfy takes one round per level, stops here.
const ROUNDS: usize = 64;

const AMP: u8 = 1;
const CONTROL: u8 = 2;
const HIGH: u8 = 4;
const RETURN: u8 = 8;
const LESS: u8 = 16;

const MARKS: [u8; 256] = {
    let mut marks = [0u8; 256];
    let mut b = 0;
    while b < 256 {
        marks[b] = match b as u8 {
            b'&' => AMP,
            b'<' => LESS,
            b'\r' => RETURN,
            0..=8 | 0x0b | 0x0e..=0x1f | 0x7f => CONTROL,
            0x80.. => HIGH,
            _ => 0,
        };
        b += 1;
    }
    marks
};

/// Repairs that a piece of text may need, determined in one scan.
fn marks_of(text: &str) -> u8 {
    text.bytes().fold(0, |marks, b| marks | MARKS[b as usize])
}

/// Compiled repairs; shared by threads.
#[derive(Clone, Debug)]
pub struct UnicodeFixer {
    options: UnicodeOptions,
    detectors: Detectors,
    near: NearUtf8,
    codecs: Vec<Codec>,
}

impl UnicodeFixer {
    /// Compiles `options`.
    pub fn new(options: &UnicodeOptions) -> UnicodeFixer {
        UnicodeFixer {
            options: options.clone(),
            detectors: Detectors::new(),
            near: NearUtf8::new(),
            codecs: Codec::all(),
        }
    }

    /// Returns the repaired text; borrowed if nothing changed.
    pub fn fix<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.may_change(text, marks_of(text), self.options.unescape_html != Unescape::Never) {
            return Cow::Borrowed(text);
        }
        let mut unescape = self.options.unescape_html;
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let (segment, next) = self.cut(rest);
            let marks = marks_of(segment);
            if unescape == Unescape::Auto && marks & LESS != 0 {
                unescape = Unescape::Never;
            }
            let entities = unescape != Unescape::Never;
            if self.may_change(segment, marks, entities) {
                out.push_str(&self.fix_segment(segment, entities));
            } else {
                out.push_str(segment);
            }
            rest = next;
        }
        if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
    }

    /// Splits off the first line with its end, limited to `max_decode_length` characters.
    fn cut<'a>(&self, text: &'a str) -> (&'a str, &'a str) {
        let end = memchr::memchr(b'\n', text.as_bytes()).map_or(text.len(), |at| at + 1);
        let max = self.options.max_decode_length.max(1);
        let end = if end > max { text[..end].char_indices().nth(max).map_or(end, |(at, _)| at) } else { end };
        text.split_at(end)
    }

    /// Returns false only if no repair can change `text`, whose scan found these `marks`.
    fn may_change(&self, text: &str, marks: u8, entities: bool) -> bool {
        let o = &self.options;
        if entities && marks & AMP != 0
            || marks & CONTROL != 0 && (o.remove_control_chars || o.remove_terminal_escapes)
            || marks & RETURN != 0 && o.fix_line_breaks
        {
            return true;
        }
        if marks & HIGH == 0 {
            return false;
        }
        let normal = match o.normalization {
            None => true,
            Some(Normalization::Nfc) => unicode_normalization::is_nfc(text),
            Some(Normalization::Nfd) => unicode_normalization::is_nfd(text),
            Some(Normalization::Nfkc) => unicode_normalization::is_nfkc(text),
            Some(Normalization::Nfkd) => unicode_normalization::is_nfkd(text),
        };
        !normal || simple::any(text, o) || o.fix_encoding && self.detectors.is_bad(text)
    }

    fn fix_segment(&self, segment: &str, entities: bool) -> String {
        let o = &self.options;
        let mut text = segment.to_string();
        for _ in 0..ROUNDS {
            let mut next = Cow::Borrowed(text.as_str());
            if entities {
                next = then(next, entities::unescape);
            }
            if o.fix_encoding {
                next = then(next, |t| self.fix_encoding(t, o));
            }
            next = simple::all(next, o);
            if let Some(form) = o.normalization {
                next = Cow::Owned(match form {
                    Normalization::Nfc => next.nfc().collect(),
                    Normalization::Nfd => next.nfd().collect(),
                    Normalization::Nfkc => next.nfkc().collect(),
                    Normalization::Nfkd => next.nfkd().collect(),
                });
            }
            if next == text {
                return text;
            }
            text = next.into_owned();
        }
        text
    }

    /// Decodes mojibake repeatedly until none is left.
    fn fix_encoding<'a>(&self, text: &'a str, o: &UnicodeOptions) -> Cow<'a, str> {
        let mut current = Cow::Borrowed(text);
        for _ in 0..ROUNDS {
            match self.fix_encoding_once(&current, o) {
                Some(next) if next != *current => current = Cow::Owned(next),
                _ => break,
            }
        }
        current
    }

    fn fix_encoding_once(&self, text: &str, o: &UnicodeOptions) -> Option<String> {
        if text.is_ascii() || !self.detectors.is_bad(text) {
            return None;
        }
        let mut latin1 = None;
        for (i, encoding) in self.codecs.iter().enumerate() {
            let Some(mut bytes) = encoding.encode(text) else { continue };
            if i == 0 {
                latin1 = Some(bytes.clone());
            }
            if o.restore_byte_a0 && encoding.name != "macroman" {
                bytes = self.near.restore_a0(bytes);
            }
            if o.replace_lossy_sequences && encoding.sloppy {
                bytes = self.near.replace_lossy(bytes);
            }
            if let Some(read) = variants::decode(bytes) {
                return Some(read);
            }
        }
        if o.decode_inconsistent_utf8 {
            let fixed = self.fix_runs(text);
            if fixed != text {
                return Some(fixed);
            }
        }
        if latin1.is_some()
            && let Some(fixed) = simple::latin1_as_windows_1252(text)
            && fixed != text
        {
            return Some(fixed);
        }
        o.fix_c1_controls.then(|| simple::c1_controls(Cow::Borrowed(text)).into_owned())
    }

    /// Repairs runs that read as UTF-8 within a text that as a whole does not.
    fn fix_runs(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut done = 0;
        while let Some((start, end)) = self.detectors.next_run(text, done) {
            out.push_str(&text[done..start]);
            let run = &text[start..end];
            if run.len() < text.len() && self.detectors.is_bad(run) {
                out.push_str(&self.fix_encoding(run, &UnicodeOptions::default()));
            } else {
                out.push_str(run);
            }
            done = end;
        }
        out.push_str(&text[done..]);
        out
    }
}

/// Applies `change` to `text`, without copying if neither changes.
fn then<'a>(text: Cow<'a, str>, change: impl for<'b> Fn(&'b str) -> Cow<'b, str>) -> Cow<'a, str> {
    match change(&text) {
        Cow::Borrowed(same) if same.len() == text.len() => text,
        Cow::Borrowed(part) => Cow::Owned(part.to_string()),
        Cow::Owned(new) => Cow::Owned(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs() {
        let ftfy = UnicodeFixer::new(&UnicodeOptions::ftfy());
        let check = |broken: &str, expected: &str| assert_eq!(ftfy.fix(broken), expected, "{broken}");
        check("âœ” No problems", "✔ No problems");
        check("&macr;\\_(ã\u{83}\u{84})_/&macr;", "¯\\_(ツ)_/¯");
        check(
            "Broken text&hellip; it&#x2019;s ﬂubberiﬁc!",
            "Broken text... it's flubberific!".replace("...", "…").as_str(),
        );
        check("ＬＯＵＤ　ＮＯＩＳＥＳ", "LOUD NOISES");
        check("P&EACUTE;REZ", "PÉREZ");
        check("voilÃ le travail", "voilà le travail");
        check("clean text — “quoted” naïve", "clean text — \"quoted\" naïve");
        let curator = UnicodeFixer::new(&UnicodeOptions::default());
        assert!(matches!(curator.fix("clean text — “quoted” naïve\r\n"), Cow::Borrowed(_)));
        assert_eq!(curator.fix("\u{1b}[36;44mblue\u{1b}[0m\u{feff}\u{7}"), "blue");
        assert_eq!(curator.fix("a &lt; b\n<p> &lt;\n&lt;"), "a < b\n<p> &lt;\n&lt;");
    }
}
