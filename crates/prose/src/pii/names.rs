//! Personal names: a known given name before a capitalized word, a title before one, or words that introduce a name.
//!
//! The gazetteer contains only frequent names, and a name that is also a word counts only before a known surname.
//! Recall of rare names is low; if it matters, use a named-entity model.

use std::collections::HashSet;

use super::detection::Detection;
use super::{Entity, gazetteer};

/// Compiled gazetteer.
#[derive(Clone, Debug)]
pub(super) struct Names {
    given: HashSet<&'static str>,
    ambiguous: HashSet<&'static str>,
    surnames: HashSet<&'static str>,
}

const TITLES: [&str; 14] = [
    "Mr",
    "Mrs",
    "Ms",
    "Miss",
    "Dr",
    "Prof",
    "Professor",
    "Sir",
    "Madam",
    "Herr",
    "Frau",
    "Mx",
    "Rev",
    "Judge",
];
/// Words that introduce a name.
const INTRODUCTIONS: [&str; 12] = [
    "my name is",
    "name:",
    "i am called",
    "signed by",
    "signed,",
    "sincerely,",
    "regards,",
    "patient:",
    "contact:",
    "written by",
    "dear",
    "attn:",
];
/// Capitalized words that may follow a given name but are not surnames.
const NOT_SURNAMES: [&str; 40] = [
    "The",
    "And",
    "But",
    "Was",
    "Is",
    "Has",
    "Had",
    "In",
    "On",
    "At",
    "Of",
    "To",
    "For",
    "With",
    "From",
    "By",
    "As",
    "Street",
    "Avenue",
    "Road",
    "University",
    "College",
    "School",
    "Hospital",
    "Church",
    "Island",
    "County",
    "City",
    "Bay",
    "River",
    "Lake",
    "Award",
    "Prize",
    "Company",
    "Inc",
    "Ltd",
    "Foundation",
    "Airport",
    "Day",
    "Park",
];

/// A capitalized word with its position.
#[derive(Clone, Copy)]
pub(super) struct Word<'a> {
    pub text: &'a str,
    pub start: usize,
    pub end: usize,
}

impl Names {
    pub(super) fn new() -> Names {
        let set = |list: &'static str| list.split_whitespace().collect::<HashSet<_>>();
        Names {
            given: set(gazetteer::GIVEN),
            ambiguous: set(gazetteer::AMBIGUOUS),
            surnames: set(gazetteer::SURNAMES),
        }
    }

    pub(super) fn find(&self, text: &str, wanted: &impl Fn(Entity) -> bool, found: &mut Vec<Detection>) {
        if !wanted(Entity::Person) {
            return;
        }
        let mut from = 0;
        while let Some(word) = next_capitalised(text, from) {
            from = word.end;
            let name = if TITLES.contains(&word.text) {
                self.after_title(text, word)
            } else {
                self.by_given(text, word).or_else(|| self.introduced(text, word))
            };
            if let Some((start, end)) = name {
                found.push(Detection { entity: Entity::Person, start, end });
                from = end;
            }
        }
    }

    /// "Dr. Jane Smith": the detection excludes the title.
    fn after_title(&self, text: &str, title: Word) -> Option<(usize, usize)> {
        let after = text[title.end..].strip_prefix('.').map_or(title.end, |_| title.end + 1);
        let first = adjacent(text, after)?;
        if NOT_SURNAMES.contains(&first.text) {
            return None;
        }
        Some((first.start, self.extend(text, first.end, 2)))
    }

    /// "Jane Q. Smith", by a known given name.
    fn by_given(&self, text: &str, word: Word) -> Option<(usize, usize)> {
        let (sure, perhaps) = (self.given.contains(word.text), self.ambiguous.contains(word.text));
        if !sure && !perhaps {
            return None;
        }
        let mut next = adjacent(text, word.end)?;
        let mut middle = 0;
        while middle < 2 && (is_initial(text, next) || self.given.contains(next.text)) {
            let end = if text[next.end..].starts_with('.') { next.end + 1 } else { next.end };
            match adjacent(text, end) {
                Some(after) => next = after,
                None if is_initial(text, next) => return None,
                None => break,
            }
            middle += 1;
        }
        let known = self.surnames.contains(next.text) || sure && middle > 0;
        let likely = sure && next.text.chars().count() > 1 && !NOT_SURNAMES.contains(&next.text);
        let shouting = next.text.chars().count() > 2 && next.text.chars().all(char::is_uppercase) && !known;
        ((known || likely) && !shouting).then_some((word.start, next.end))
    }

    /// "My name is Xyz Abc".
    fn introduced(&self, text: &str, word: Word) -> Option<(usize, usize)> {
        let from = text.floor_char_boundary(word.start.saturating_sub(16));
        let before = text[from..word.start].trim_end().to_ascii_lowercase();
        let introduction = INTRODUCTIONS.iter().find(|i| before.ends_with(**i))?;
        let joined =
            before[..before.len() - introduction.len()].ends_with(|c: char| c.is_ascii_alphanumeric());
        let second = adjacent(text, word.end);
        let plausible =
            second.is_some_and(|w| !NOT_SURNAMES.contains(&w.text)) || self.given.contains(word.text);
        (!joined && plausible && !NOT_SURNAMES.contains(&word.text))
            .then(|| (word.start, self.extend(text, word.end, 1)))
    }

    /// Extends by up to `more` capitalized words directly after `end`.
    fn extend(&self, text: &str, end: usize, more: usize) -> usize {
        let mut end = end;
        for _ in 0..more {
            let after = if text[end..].starts_with('.') { end + 1 } else { end };
            match adjacent(text, after).filter(|w| !NOT_SURNAMES.contains(&w.text)) {
                Some(next) => end = next.end,
                None => break,
            }
        }
        end
    }
}

fn is_initial(text: &str, word: Word) -> bool {
    word.text.chars().count() == 1 && text[word.end..].starts_with('.')
}

/// Capitalized word that follows `at` after one space.
pub(super) fn adjacent(text: &str, at: usize) -> Option<Word<'_>> {
    let rest = text[at..].strip_prefix([' ', '\u{a0}'])?;
    let start = text.len() - rest.len();
    let word = word_at(text, start);
    word.text.starts_with(char::is_uppercase).then_some(word)
}

/// Letters (with inner apostrophes and hyphens) from `start`.
pub(super) fn word_at(text: &str, start: usize) -> Word<'_> {
    let mut end = start;
    for (offset, c) in text[start..].char_indices() {
        let inner = matches!(c, '\'' | '’' | '-')
            && text[start + offset + c.len_utf8()..].starts_with(char::is_uppercase);
        if !c.is_alphabetic() && !inner {
            break;
        }
        end = start + offset + c.len_utf8();
    }
    Word { text: &text[start..end], start, end }
}

/// Next word from `from` that begins with a capital.
pub(super) fn next_capitalised(text: &str, from: usize) -> Option<Word<'_>> {
    let mut before = text[..from].chars().next_back();
    for (offset, c) in text[from..].char_indices() {
        let inside = before.is_some_and(|b| b.is_alphanumeric() || b == '\'');
        if !inside && c.is_uppercase() {
            return Some(word_at(text, from + offset));
        }
        before = Some(c);
    }
    None
}
