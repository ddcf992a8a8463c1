//! Chunks of a document: passages of at most some bytes that respect its structure, with their places in it.
//!
//! A chunk is a range of the source wherever the source is text, so that what is cited can be looked up.

mod code;
mod markdown;
mod plain;

use std::ops::Range;

pub use code::code;
pub use markdown::markdown;
pub use plain::plain;

/// A passage of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its bytes in the text.
    pub range: Range<usize>,
    /// Headings that it stands under, the outermost first; the signature of a function or type in source code.
    pub headings: Vec<String>,
    /// Text in front of it that belongs to it, such as the head of a table whose later rows it has.
    pub lead: String,
}

impl Chunk {
    fn of(range: Range<usize>, headings: &[String]) -> Chunk {
        Chunk { range, headings: headings.to_vec(), lead: String::new() }
    }
}

/// Ranges of consecutive parts, joined while they have at most `most` bytes together.
fn packed(parts: impl IntoIterator<Item = Range<usize>>, most: usize) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for part in parts {
        match all.last_mut() {
            Some(last) if part.end - last.start <= most => last.end = part.end,
            _ => all.push(part),
        }
    }
    all
}

/// The range without the white space around it.
fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..(start + part.trim().len())
}

/// A line of a heading: white space collapsed, at most 160 bytes.
pub(crate) fn heading(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    line[..line.floor_char_boundary(160)].to_string()
}
