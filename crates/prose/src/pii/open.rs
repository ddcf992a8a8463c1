//! The end of a growing text about which later text decides.

use super::options::Entity;
use super::{Pii, digits, national};

/// Bytes of the longest detection of words, such as an address, with its surroundings.
const WORDS: usize = 128;
/// Letters of the longest part of a word in a number of a country.
const SHORT: usize = 3;

impl Pii {
    /// Offset before which later text changes no detection in a growing text. Mail addresses, addresses of the net and
    /// numbers end with the word or the row of numbers in which they stand; detections of words may need
    /// the following ones.
    pub fn first_open(&self, text: &str) -> usize {
        use Entity::{Address, DateTime, Location, Person};
        if self.options.entities.iter().any(|it| matches!(it, Address | DateTime | Location | Person)) {
            return text.floor_char_boundary(text.len().saturating_sub(WORDS));
        }
        // Numbers such as `ab 12 34 56 c` have words of letters, in either case.
        let short = self.options.entities.iter().any(|it| national::is_national(*it));
        let mut open = last_word(text, text.len());
        loop {
            let before = text[..open].trim_end();
            let start = last_word(text, before.len());
            let word = &text[start..before.len()];
            let goes_on = belongs_to_number(word) || short && is_short(word);
            if start == open || !goes_on {
                return open;
            }
            open = start;
        }
    }
}

/// Start of the word that ends at an offset.
fn last_word(text: &str, end: usize) -> usize {
    text[..end].char_indices().rev().find(|(_, c)| c.is_whitespace()).map_or(0, |(at, c)| at + c.len_utf8())
}

/// Returns whether a word may stand within a number: it has digits, is a mark between them, or capitals of an account.
fn belongs_to_number(word: &str) -> bool {
    !digits::groups(word).is_empty()
        || word.chars().all(|c| !c.is_alphanumeric())
        || word.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Returns whether a number of a country may begin in a word, or go on through it: the last part, as of `B-MW`, is short.
fn is_short(word: &str) -> bool {
    word.rsplit(|c: char| !c.is_alphanumeric()).next().is_none_or(|part| part.chars().count() <= SHORT)
}

#[cfg(test)]
mod tests {
    use crate::pii::{Entity, Pii, PiiOptions};

    #[test]
    fn words_are_closed_and_numbers_are_open_while_they_may_go_on() {
        let options = PiiOptions { entities: vec![Entity::Phone, Entity::Email], ..PiiOptions::default() };
        let pii = Pii::new(&options).unwrap();
        for (text, open) in [
            ("write to jane", "jane"),
            ("call (212) 555 - ", "(212) 555 - "),
            ("account GB82 WEST 12", "GB82 WEST 12"),
            ("in 1999 there were", "were"),
            ("", ""),
        ] {
            assert_eq!(&text[pii.first_open(text)..], open, "{text}");
        }
    }
}
