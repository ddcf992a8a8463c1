//! Sentences of an answer, as spans.

use std::ops::Range;

/// Spans of the sentences of a text, without the space around them: a sentence ends at a full stop, a question or
/// exclamation mark that white space or the text's end follows, at a mark of a script without spaces, or at a line's end.
pub(crate) fn sentences(text: &str) -> Vec<Range<usize>> {
    let (mut all, mut start) = (Vec::new(), 0);
    let mut push = |range: Range<usize>| {
        let part = &text[range.clone()];
        let from = range.start + part.len() - part.trim_start().len();
        let to = range.start + part.trim_end().len();
        if from < to {
            all.push(from..to);
        }
    };
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let end = at + c.len_utf8();
        let next = chars.peek().map(|(_, next)| *next);
        let closed = |c: char| matches!(c, '.' | '!' | '?' | '…');
        let is_end = c == '\n'
            || matches!(c, '。' | '！' | '？' | '؟' | '।')
            || closed(c) && next.is_none_or(char::is_whitespace) && !abbreviated(&text[start..end]);
        if is_end {
            push(start..end);
            start = end;
        }
    }
    push(start..text.len());
    all
}

/// Returns whether a text ends in a full stop of an abbreviation or of a list's number.
fn abbreviated(text: &str) -> bool {
    let Some(text) = text.strip_suffix('.') else { return false };
    let word = text.rsplit(char::is_whitespace).next().unwrap_or_default();
    let word = word.trim_start_matches(['(', '"', '\'']);
    const SHORT: &[&str] =
        &["Mr", "Mrs", "Ms", "Dr", "Prof", "St", "vs", "etc", "e.g", "i.e", "cf", "Fig", "Inc"];
    SHORT.contains(&word)
        || word.chars().count() == 1 && word.chars().all(char::is_uppercase)
        || text.trim().len() == word.len() && !word.is_empty() && word.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_spans_of_the_text() {
        let of = |text| sentences(text).into_iter().map(|span| &text[span]).collect::<Vec<_>>();
        assert_eq!(of("One.  Two? Three"), ["One.", "Two?", "Three"]);
        assert_eq!(of("Dr. No has 3.5 apples. J. Smith, too."), ["Dr. No has 3.5 apples.", "J. Smith, too."]);
        assert_eq!(of("1. First item\n2. Second"), ["1. First item", "2. Second"]);
        assert_eq!(of("你好。再见"), ["你好。", "再见"]);
        assert_eq!(of(" \n "), Vec::<&str>::new());
    }
}
