//! Chunks of plain text: whole paragraphs while they fit, else lines, sentences, words.

use std::ops::Range;

use super::{Chunk, trimmed};

/// Ends after which a text may be split, the best first.
const ENDS: [&str; 7] = ["\n\n", "\n", ". ", "! ", "? ", "。", " "];

/// Chunks of a text.
pub fn plain(text: &str, most: usize, headings: &[String]) -> Vec<Chunk> {
    split(text, 0..text.len(), most).into_iter().map(|range| Chunk::of(range, headings)).collect()
}

/// Parts of a range of a text of at most `most` bytes, without the white space around them.
pub(super) fn split(text: &str, range: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut rest = trimmed(text, range);
    while rest.len() > most {
        let window = &text[rest.start..text.floor_char_boundary(rest.start + most)];
        // A quarter of the window has to be used, so that a short line does not become a part.
        let at = |end: &&str| window.rfind(*end).map(|at| at + end.len()).filter(|at| *at > most / 4);
        let at = ENDS.iter().find_map(at).unwrap_or(window.len()).max(1);
        let at = text.ceil_char_boundary(rest.start + at);
        parts.push(trimmed(text, rest.start..at));
        rest = trimmed(text, at..rest.end);
    }
    parts.push(rest);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, most: usize, expected: &[&str]) {
        let found: Vec<&str> = plain(text, most, &[]).into_iter().map(|chunk| &text[chunk.range]).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_text_is_split_at_its_best_ends() {
        check("  one\ntwo\n\nthree four\n", 100, &["one\ntwo\n\nthree four"]);
        check("one two\n\nthree four. five six", 12, &["one two", "three four.", "five six"]);
        check("abcdefghij klm", 6, &["abcdef", "ghij", "klm"]);
        check("ééééé", 3, &["é", "é", "é", "é", "é"]);
        check(" \n ", 3, &[]);
    }

    #[test]
    fn a_part_never_exceeds_the_limit_and_nothing_is_lost() {
        let text: String = (0..400).map(|at| if at % 7 == 0 { ' ' } else { 'é' }).collect();
        for most in [4, 9, 50, 1000] {
            let parts = split(&text, 0..text.len(), most);
            assert!(parts.iter().all(|part| part.len() <= most), "{most}");
            let letters: usize = parts.iter().map(|part| text[part.clone()].matches('é').count()).sum();
            assert_eq!(letters, text.matches('é').count());
        }
    }
}
