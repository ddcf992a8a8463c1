//! Repeated lines and paragraphs, split as in datatrove's Gopher filter.

use super::lines::{Bag, Pieces};
use super::table::Table;
use super::unicode::strip;
use memchr::memchr;

/// Pieces of `text.strip()` between runs of two or more newlines.
pub(crate) fn gopher_paragraphs(text: &str, bag: &mut Bag, table: &mut Table) -> Pieces {
    split_runs(strip(text), 2, bag, table)
}

/// Pieces of `text` between runs of newlines.
pub(crate) fn gopher_lines(text: &str, bag: &mut Bag, table: &mut Table) -> Pieces {
    split_runs(text, 1, bag, table)
}

fn split_runs(text: &str, at_least: usize, bag: &mut Bag, table: &mut Table) -> Pieces {
    bag.clear();
    let bytes = text.as_bytes();
    let (mut start, mut from) = (0, 0);
    while let Some(skip) = memchr(b'\n', &bytes[from..]) {
        let at = from + skip;
        let run = bytes[at..].iter().take_while(|&&b| b == b'\n').count();
        from = at + run;
        if run >= at_least {
            bag.add(&text[start..at]);
            start = from;
        }
    }
    bag.add(&text[start..]);
    bag.pieces(table)
}
