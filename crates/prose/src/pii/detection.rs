//! A detection, and the checks of its surroundings.

use super::options::Entity;

/// One detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detection {
    /// Kind of personal data.
    pub entity: Entity,
    /// Byte offset of its start.
    pub start: usize,
    /// Byte offset of its end.
    pub end: usize,
}

/// Returns true if the range is not adjacent to a letter or digit.
pub(super) fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    !text[..start].ends_with(char::is_alphanumeric) && !text[end..].starts_with(char::is_alphanumeric)
}

/// Returns true if one of `words` (lower case) occurs within `reach` bytes before `start`, but not before a blank
/// line.
pub(super) fn has_context(text: &str, start: usize, reach: usize, words: &[&str]) -> bool {
    let from = text.floor_char_boundary(start.saturating_sub(reach));
    let before = &text[from..start];
    let before = before.rsplit("\n\n").next().unwrap_or(before);
    // Words of other languages have letters whose capitals are not ASCII.
    let lower;
    let before = if before.is_ascii() {
        before.as_bytes()
    } else {
        lower = before.to_lowercase();
        lower.as_bytes()
    };
    let is_letter = |at: usize| before.get(at).is_some_and(u8::is_ascii_alphabetic);
    // Comparing at the few word starts is faster than searching for each word.
    let mut starts = (0..before.len()).filter(|at| *at == 0 || !is_letter(at - 1));
    starts.any(|at| {
        let stands = |word: &&str| {
            let end = at + word.len();
            before.get(at..end).is_some_and(|here| here.eq_ignore_ascii_case(word.as_bytes()))
                && !is_letter(end)
        };
        words.iter().any(stands)
    })
}

/// Compiles a pattern of this module, which is known to be valid.
pub(super) fn compile(pattern: &str) -> regex::Regex {
    match regex::Regex::new(pattern) {
        Ok(regex) => regex,
        Err(error) => panic!("pattern of personal data: {error}"),
    }
}
