//! Text of PDFs: pages in order, lines and words by the places of their glyphs.
//!
//! Files are parsed by `hayro-syntax`, which repairs damaged tables of objects and reads files that are encrypted without
//! a password. Glyphs become characters by the font's own map (`ToUnicode`, read by `hayro-cmap`), else by its encoding.

use std::collections::HashMap;

use fathom_base::guard::guarded;
use hayro_syntax::content::TypedIter;
use hayro_syntax::content::ops::TypedInstruction as Op;
use hayro_syntax::object::{Dict, Name, Number, Object};
use hayro_syntax::page::Resources;
use hayro_syntax::{DecryptionError, LoadPdfError, Pdf};

use super::document::{Document, Passage};
use super::inflated;
use crate::chunk;

mod font;

use font::Font;

/// Largest file, in bytes.
const LARGEST: usize = 512 << 20;
/// Deepest nesting of forms.
const DEEPEST: usize = 4;
/// Most text of a page, in bytes; a page with more is no page of text.
const MOST_TEXT: usize = 1 << 20;

/// The document of a PDF; each passage names its page.
///
/// # Errors
/// The reason why it has none.
pub(super) fn document(bytes: &[u8], most: usize) -> Result<Document, String> {
    if bytes.len() > LARGEST {
        return Err(format!("the PDF has {} bytes; {LARGEST} are the most", bytes.len()));
    }
    inflated::check(bytes)?;
    // A parser of a format of this size is not trusted to never panic.
    let read = guarded(|| pages(bytes));
    let pages = read.unwrap_or_else(|_| Err("the PDF is damaged: its parser failed".into()))?;
    let mut document = Document::default();
    for (at, text) in pages.iter().enumerate() {
        for chunk in chunk::plain(text, most, &[]) {
            document.passages.push(Passage {
                text: text[chunk.range].to_string(),
                bytes: [0, bytes.len() as u64],
                page: u32::try_from(at + 1).ok(),
                ..Passage::default()
            });
        }
    }
    if document.passages.is_empty() {
        let what =
            if pages.is_empty() { "the PDF has no pages" } else { "the PDF has no text; it may be a scan" };
        return Err(what.into());
    }
    Ok(document)
}

/// Texts of the pages.
fn pages(bytes: &[u8]) -> Result<Vec<String>, String> {
    let pdf = Pdf::new(bytes.to_vec()).map_err(|error| match error {
        LoadPdfError::Decryption(DecryptionError::PasswordProtected) => {
            "the PDF is encrypted with a password; remove it, for instance with `qpdf --decrypt`".to_string()
        }
        LoadPdfError::Decryption(_) => "the PDF is encrypted in a way that cannot be read".into(),
        LoadPdfError::Invalid => "the PDF is damaged: it has no readable table of objects".into(),
    })?;
    let text = |page: &hayro_syntax::page::Page<'_>| {
        let mut writer = Writer::default();
        if let Some(stream) = page.page_stream() {
            writer.stream(stream, page.resources(), IDENTITY, 0);
        }
        writer.text
    };
    Ok(pdf.pages().iter().map(text).collect())
}

/// A transformation: the six numbers of a PDF's matrix.
type Matrix = [f64; 6];

const IDENTITY: Matrix = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0];

/// The transformation that applies `a` first.
fn times(a: Matrix, b: Matrix) -> Matrix {
    [
        a[0] * b[0] + a[1] * b[2],
        a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2],
        a[2] * b[1] + a[3] * b[3],
        a[4] * b[0] + a[5] * b[2] + b[4],
        a[4] * b[1] + a[5] * b[3] + b[5],
    ]
}

/// State of text while a page is read.
struct Pen {
    /// Matrix of the text line, and of the next glyph.
    line: Matrix,
    glyph: Matrix,
    size: f64,
    leading: f64,
    letter: f64,
    word: f64,
    scale: f64,
    /// The key of the font.
    font: usize,
}

/// Writes the text of a page.
#[derive(Default)]
struct Writer {
    text: String,
    /// Place where the last glyph ended, with its size.
    end: Option<(f64, f64, f64)>,
    fonts: Vec<Font>,
}

impl Writer {
    /// Reads a content stream.
    fn stream(&mut self, content: &[u8], resources: &Resources<'_>, outer: Matrix, depth: usize) {
        let mut named: HashMap<Vec<u8>, usize> = HashMap::new();
        let (mut ctm, mut saved) = (outer, Vec::new());
        let mut pen = Pen {
            line: IDENTITY,
            glyph: IDENTITY,
            size: 1.0,
            leading: 0.0,
            letter: 0.0,
            word: 0.0,
            scale: 1.0,
            font: usize::MAX,
        };
        let f = |number: &Number| number.as_f64();
        let mut ops = TypedIter::new(content);
        while let Some(op) = ops.next() {
            if self.text.len() > MOST_TEXT {
                return;
            }
            match op {
                Op::SaveState(_) if saved.len() < 256 => saved.push(ctm),
                Op::RestoreState(_) => ctm = saved.pop().unwrap_or(ctm),
                Op::Transform(m) => ctm = times([&m.0, &m.1, &m.2, &m.3, &m.4, &m.5].map(f), ctm),
                Op::BeginText(_) => (pen.line, pen.glyph) = (IDENTITY, IDENTITY),
                Op::TextFont(font) => {
                    pen.size = f(&font.1);
                    pen.font = *named.entry(font.0.as_ref().to_vec()).or_insert_with(|| {
                        self.fonts
                            .push(resources.get_font(font.0).map(|dict| Font::of(&dict)).unwrap_or_default());
                        self.fonts.len() - 1
                    });
                }
                Op::TextLeading(to) => pen.leading = f(&to.0),
                Op::CharacterSpacing(to) => pen.letter = f(&to.0),
                Op::WordSpacing(to) => pen.word = f(&to.0),
                Op::HorizontalScaling(to) => pen.scale = f(&to.0) / 100.0,
                Op::NextLine(by) => pen.move_by(f(&by.0), f(&by.1)),
                Op::NextLineAndSetLeading(by) => {
                    pen.leading = -f(&by.1);
                    pen.move_by(f(&by.0), f(&by.1));
                }
                Op::SetTextMatrix(m) => {
                    pen.line = [&m.0, &m.1, &m.2, &m.3, &m.4, &m.5].map(f);
                    pen.glyph = pen.line;
                }
                Op::NextLineUsingLeading(_) => pen.move_by(0.0, -pen.leading),
                Op::ShowText(text) => self.show(text.0.as_bytes(), &mut pen, ctm),
                Op::NextLineAndShowText(text) => {
                    pen.move_by(0.0, -pen.leading);
                    self.show(text.0.as_bytes(), &mut pen, ctm);
                }
                Op::ShowTextWithParameters(text) => {
                    (pen.word, pen.letter) = (f(&text.0), f(&text.1));
                    pen.move_by(0.0, -pen.leading);
                    self.show(text.2.as_bytes(), &mut pen, ctm);
                }
                Op::ShowTexts(texts) => {
                    for part in texts.0.iter::<Object<'_>>() {
                        match part {
                            Object::String(text) => self.show(text.as_bytes(), &mut pen, ctm),
                            Object::Number(by) => pen.advance(-by.as_f64() / 1000.0 * pen.size * pen.scale),
                            _ => {}
                        }
                    }
                }
                Op::XObject(form) if depth < DEEPEST => self.form(form.0, resources, ctm, depth),
                _ => {}
            }
        }
    }

    /// Reads a form, a content stream of its own.
    fn form(&mut self, name: &Name<'_>, resources: &Resources<'_>, ctm: Matrix, depth: usize) {
        let Some(stream) = resources.get_x_object(name) else { return };
        let dict = stream.dict();
        if dict.get::<Name<'_>>("Subtype").is_none_or(|kind| kind.as_str() != "Form") {
            return;
        }
        let Ok(content) = stream.decoded() else { return };
        let own = dict.get::<Dict<'_>>("Resources").map(Resources::new);
        self.stream(&content, own.as_ref().unwrap_or(resources), ctm, depth + 1);
    }

    /// Writes a string of glyphs.
    fn show(&mut self, codes: &[u8], pen: &mut Pen, ctm: Matrix) {
        let place = |pen: &Pen| {
            let at = times(pen.glyph, ctm);
            (at[4], at[5], pen.size.abs() * (at[0].hypot(at[1])).max(1e-9))
        };
        let fallback = Font::default();
        let fonts = std::mem::take(&mut self.fonts);
        let font = fonts.get(pen.font).unwrap_or(&fallback);
        self.separate(place(pen));
        let wide = font.code_bytes();
        for code in codes.chunks(wide) {
            let code = code.iter().fold(0u32, |all, byte| all << 8 | u32::from(*byte));
            font.write(code, &mut self.text);
            let spacing = pen.letter + if wide == 1 && code == 32 { pen.word } else { 0.0 };
            pen.advance((font.width(code) * pen.size + spacing) * pen.scale);
        }
        self.end = Some(place(pen));
        self.fonts = fonts;
    }

    /// Writes the white space between the last glyph and the next.
    fn separate(&mut self, (x, y, size): (f64, f64, f64)) {
        let Some((end_x, end_y, end_size)) = self.end else { return };
        let tall = size.max(end_size);
        let down = (end_y - y).abs();
        if down > 0.4 * tall {
            let trimmed = self.text.trim_end_matches(' ').len();
            self.text.truncate(trimmed);
            self.text.push_str(if down > 1.9 * tall { "\n\n" } else { "\n" });
        } else if (x - end_x > 0.15 * tall || x < end_x - 2.0 * tall) && !self.text.ends_with([' ', '\n']) {
            self.text.push(' ');
        }
    }
}

impl Pen {
    fn move_by(&mut self, x: f64, y: f64) {
        self.line = times([1.0, 0.0, 0.0, 1.0, x, y], self.line);
        self.glyph = self.line;
    }

    fn advance(&mut self, by: f64) {
        self.glyph = times([1.0, 0.0, 0.0, 1.0, by, 0.0], self.glyph);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PDF with a page of each content stream; objects as a producer writes them.
    fn pdf(contents: &[&str], trailer: &str) -> Vec<u8> {
        let kids: Vec<String> = (0..contents.len()).map(|at| format!("{} 0 R", 10 + 2 * at)).collect();
        let mut out = format!(
            "%PDF-1.4\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n2 0 obj\n<</Type/Pages/Kids[{}]/Count {}>>\nendobj\n3 0 obj\n<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>\nendobj\n",
            kids.join(" "),
            contents.len()
        );
        for (at, content) in contents.iter().enumerate() {
            let page = 10 + 2 * at;
            out += &format!(
                "{page} 0 obj\n<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F1 3 0 R>>>>/Contents {} 0 R>>\nendobj\n{} 0 obj\n<</Length {}>>\nstream\n{content}\nendstream\nendobj\n",
                page + 1,
                page + 1,
                content.len()
            );
        }
        out += &format!("trailer\n<</Root 1 0 R{trailer}>>\n%%EOF\n");
        out.into_bytes()
    }

    #[test]
    fn pages_give_lines_and_words_by_their_places() {
        let first = "BT /F1 12 Tf 72 700 Td (A line of) Tj 100 0 Td (text) Tj -100 -14 Td [(Sec) -10 (ond) -400 (line)] TJ 0 -60 Td (Caf\\351) Tj ET";
        let found = document(&pdf(&[first, "BT /F1 12 Tf (Page two) Tj ET"], ""), 1000).unwrap();
        let texts: Vec<(&str, Option<u32>)> =
            found.passages.iter().map(|passage| (passage.text.as_str(), passage.page)).collect();
        assert_eq!(texts, [("A line of text\nSecond line\n\nCafé", Some(1)), ("Page two", Some(2))]);
    }

    #[test]
    fn pdfs_that_cannot_be_read_say_why() {
        let why = |bytes: &[u8]| document(bytes, 1000).unwrap_err();
        assert!(why(&pdf(&["0 0 m"], "")).contains("no text"));
        assert!(why(b"%PDF-1.4\ngarbage").contains("damaged"));
        let key = "/Encrypt <</Filter/Standard/V 1/R 2/P -4/O<0000000000000000000000000000000000000000000000000000000000000000>/U<0000000000000000000000000000000000000000000000000000000000000000>>>/ID[<00><00>]";
        let said = why(&pdf(&["BT ET"], key));
        assert!(said.contains("encrypted") || said.contains("damaged"), "{said}");
    }

    #[test]
    fn a_damaged_pdf_is_read_or_refused() {
        let whole = pdf(&["BT /F1 12 Tf 72 700 Td (Hello there) Tj ET"], "");
        let mut state = 7u64;
        for _ in 0..200 {
            let mut bytes = whole.clone();
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
            }
            _ = document(&bytes, 100);
        }
    }
}
