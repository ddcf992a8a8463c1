//! Lines and paragraphs of a text, found in one pass with the counts for the line filters.

use super::table::{Table, hash};
use super::unicode::{count_chars, is_ascii_space, strip};
use memchr::memchr_iter;

/// Bullets of Curator's list (Gopher, Rae et al. 2021, extended).
const BULLETS: [char; 12] = ['•', '‣', '⁃', '⁌', '⁍', '∙', '○', '●', '◘', '◦', '⦾', '⦿'];
/// Line endings that indicate a sentence, according to Curator and C4.
const END_MARKS: [char; 5] = ['.', '?', '!', '"', '\''];
/// Closing quotation marks of other scripts.
const CLOSING: [char; 6] = ['”', '’', '」', '』', '»', '）'];
/// Endings of truncated lines, in lower case.
const CUT_OFF: [&str; 8] = ["...", "[...]", "…", "(...)", "[…]", "-»", "read more..", "read more"];

/// Number and characters of pieces, in total and without repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pieces {
    pub(crate) count: u32,
    pub(crate) chars: u64,
    pub(crate) unique: u32,
    pub(crate) unique_chars: u64,
}

impl Pieces {
    pub(crate) fn repeated(&self) -> u32 {
        self.count - self.unique
    }
    pub(crate) fn repeated_chars(&self) -> u64 {
        self.chars - self.unique_chars
    }
}

/// Facts for the line filters. Lines are the non-blank pieces between `\n`, unstripped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LineFacts {
    pub(crate) pieces: Pieces,
    pub(crate) newlines: u32,
    /// Number of stripped lines that begin with a bullet.
    pub(crate) bullets: u32,
    /// Number of stripped lines that end in none of `. ? ! " '`.
    pub(crate) without_end_mark: u32,
    /// Those of them that do not end with a sentence end of any script, or with its closing quotation mark, either.
    pub(crate) without_any_end_mark: u32,
    /// Number of stripped lines that end in an ellipsis or "read more".
    pub(crate) cut_off: u32,
    /// Number of lines whose last character is terminal punctuation in any script.
    pub(crate) terminal: u32,
    /// Number of lines of at most `short` characters, as passed to [`find_lines`].
    pub(crate) short: u32,
}

/// Hashes and lengths of pieces, for counting repetitions.
#[derive(Default)]
pub(crate) struct Bag {
    hashes: Vec<u64>,
    chars: Vec<u32>,
}

impl Bag {
    pub(crate) fn clear(&mut self) {
        self.hashes.clear();
        self.chars.clear();
    }

    pub(crate) fn add(&mut self, piece: &str) -> u32 {
        let chars = count_chars(piece.as_bytes()) as u32;
        self.hashes.push(hash(piece.as_bytes()));
        self.chars.push(chars);
        chars
    }

    pub(crate) fn pieces(&self, table: &mut Table) -> Pieces {
        let mut pieces = Pieces { count: self.hashes.len() as u32, ..Pieces::default() };
        table.reset(self.hashes.len());
        for (i, (&hash, &chars)) in self.hashes.iter().zip(&self.chars).enumerate() {
            pieces.chars += u64::from(chars);
            if table.first(hash, i as u32, &self.hashes) == i as u32 {
                pieces.unique += 1;
                pieces.unique_chars += u64::from(chars);
            }
        }
        pieces
    }
}

/// Scans the lines of `text`; `short` is the maximum number of characters of a short line.
pub(crate) fn find_lines(text: &str, short: u32, bag: &mut Bag, table: &mut Table) -> LineFacts {
    let mut facts = LineFacts::default();
    bag.clear();
    let bytes = text.as_bytes();
    let mut start = 0;
    for end in memchr_iter(b'\n', bytes).chain([bytes.len()]) {
        read_line(&text[start..end], short, bag, &mut facts);
        start = end + 1;
        facts.newlines += 1;
    }
    facts.newlines -= 1;
    facts.pieces = bag.pieces(table);
    facts
}

fn read_line(line: &str, short: u32, bag: &mut Bag, facts: &mut LineFacts) {
    let stripped = fast_strip(line);
    if stripped.is_empty() {
        return;
    }
    let chars = bag.add(line);
    facts.short += u32::from(chars <= short);
    facts.terminal += u32::from(line.ends_with(is_terminal));
    facts.bullets += u32::from(!stripped.as_bytes()[0].is_ascii() && stripped.starts_with(BULLETS));
    if !stripped.ends_with(END_MARKS) {
        facts.without_end_mark += 1;
        let ends = stripped.ends_with(is_terminal) || stripped.ends_with(CLOSING);
        facts.without_any_end_mark += u32::from(!ends);
    }
    facts.cut_off += u32::from(is_cut_off(stripped));
}

/// Like [`strip`], with a fast path for lines whose ends are plain characters.
pub(crate) fn fast_strip(line: &str) -> &str {
    let plain = |b: Option<&u8>| b.is_some_and(|&b| b.is_ascii() && !is_ascii_space(b));
    let bytes = line.as_bytes();
    if plain(bytes.first()) && plain(bytes.last()) { line } else { strip(line) }
}

fn is_cut_off(stripped: &str) -> bool {
    let bytes = stripped.as_bytes();
    let may = matches!(bytes.last(), Some(b'.' | b']' | b')' | b'e' | b'E') | Some(0x80..));
    may && CUT_OFF.iter().any(|mark| {
        let tail = bytes.len().checked_sub(mark.len()).map(|at| &bytes[at..]);
        tail.is_some_and(|tail| tail.eq_ignore_ascii_case(mark.as_bytes()))
    })
}

/// Paragraphs as in Python's `text.split("\n\n")`, including empty pieces.
pub(crate) fn find_paragraphs(text: &str, bag: &mut Bag, table: &mut Table) -> Pieces {
    bag.clear();
    for paragraph in paragraphs(text) {
        bag.add(paragraph);
    }
    bag.pieces(table)
}

/// Pieces of `text` between blank lines.
pub(crate) fn paragraphs(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    let mut start = Some(0);
    std::iter::from_fn(move || {
        let from = start?;
        let mut at = from;
        loop {
            match memchr::memchr(b'\n', &bytes[at..]) {
                None => {
                    start = None;
                    return Some(&text[from..]);
                }
                Some(skip) if bytes.get(at + skip + 1) == Some(&b'\n') => {
                    start = Some(at + skip + 2);
                    return Some(&text[from..at + skip]);
                }
                Some(skip) => at += skip + 1,
            }
        }
    })
}

/// Returns true if `c` ends a sentence in its script: datatrove's list, close to Unicode's Sentence_Terminal.
pub(crate) fn is_terminal(c: char) -> bool {
    matches!(c, '.' | '!' | '?') || !c.is_ascii() && TERMINAL.binary_search(&c).is_ok()
}

/// Non-ASCII sentence ends, ascending.
const TERMINAL: [char; 156] = [
    '\u{589}',
    '\u{61d}',
    '\u{61e}',
    '\u{61f}',
    '\u{6d4}',
    '\u{700}',
    '\u{701}',
    '\u{702}',
    '\u{7f9}',
    '\u{837}',
    '\u{839}',
    '\u{83d}',
    '\u{83e}',
    '\u{964}',
    '\u{965}',
    '\u{104a}',
    '\u{104b}',
    '\u{1362}',
    '\u{1367}',
    '\u{1368}',
    '\u{166e}',
    '\u{1735}',
    '\u{1736}',
    '\u{17d4}',
    '\u{17d5}',
    '\u{17d6}',
    '\u{17d9}',
    '\u{17da}',
    '\u{1803}',
    '\u{1809}',
    '\u{1944}',
    '\u{1945}',
    '\u{1aa8}',
    '\u{1aa9}',
    '\u{1aaa}',
    '\u{1aab}',
    '\u{1b5a}',
    '\u{1b5b}',
    '\u{1b5e}',
    '\u{1b5f}',
    '\u{1b7d}',
    '\u{1b7e}',
    '\u{1c3b}',
    '\u{1c3c}',
    '\u{1c7e}',
    '\u{1c7f}',
    '\u{203c}',
    '\u{203d}',
    '\u{2047}',
    '\u{2048}',
    '\u{2049}',
    '\u{2e2e}',
    '\u{2e3c}',
    '\u{2e53}',
    '\u{2e54}',
    '\u{3002}',
    '\u{a4ff}',
    '\u{a60e}',
    '\u{a60f}',
    '\u{a6f3}',
    '\u{a6f7}',
    '\u{a876}',
    '\u{a877}',
    '\u{a8ce}',
    '\u{a8cf}',
    '\u{a92f}',
    '\u{a9c8}',
    '\u{a9c9}',
    '\u{aa5d}',
    '\u{aa5e}',
    '\u{aa5f}',
    '\u{aaf0}',
    '\u{aaf1}',
    '\u{abeb}',
    '\u{fe52}',
    '\u{fe56}',
    '\u{fe57}',
    '\u{ff01}',
    '\u{ff0e}',
    '\u{ff1f}',
    '\u{ff61}',
    '\u{10a56}',
    '\u{10a57}',
    '\u{10f55}',
    '\u{10f56}',
    '\u{10f57}',
    '\u{10f58}',
    '\u{10f59}',
    '\u{10f86}',
    '\u{10f87}',
    '\u{10f88}',
    '\u{10f89}',
    '\u{11047}',
    '\u{11048}',
    '\u{110be}',
    '\u{110bf}',
    '\u{110c0}',
    '\u{110c1}',
    '\u{11141}',
    '\u{11142}',
    '\u{11143}',
    '\u{111c5}',
    '\u{111c6}',
    '\u{111cd}',
    '\u{111de}',
    '\u{111df}',
    '\u{11238}',
    '\u{11239}',
    '\u{1123b}',
    '\u{1123c}',
    '\u{112a9}',
    '\u{1144b}',
    '\u{1144c}',
    '\u{115c2}',
    '\u{115c3}',
    '\u{115c9}',
    '\u{115ca}',
    '\u{115cb}',
    '\u{115cc}',
    '\u{115cd}',
    '\u{115ce}',
    '\u{115cf}',
    '\u{115d0}',
    '\u{115d1}',
    '\u{115d2}',
    '\u{115d3}',
    '\u{115d4}',
    '\u{115d5}',
    '\u{115d6}',
    '\u{115d7}',
    '\u{11641}',
    '\u{11642}',
    '\u{1173c}',
    '\u{1173d}',
    '\u{1173e}',
    '\u{11944}',
    '\u{11946}',
    '\u{11a42}',
    '\u{11a43}',
    '\u{11a9b}',
    '\u{11a9c}',
    '\u{11c41}',
    '\u{11c42}',
    '\u{11ef7}',
    '\u{11ef8}',
    '\u{11f43}',
    '\u{11f44}',
    '\u{16a6e}',
    '\u{16a6f}',
    '\u{16af5}',
    '\u{16b37}',
    '\u{16b38}',
    '\u{16b44}',
    '\u{16e98}',
    '\u{1bc9f}',
    '\u{1da88}',
];
