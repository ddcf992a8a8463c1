//! Modifiers of whole texts: outer quotation marks, boilerplate paragraphs, slices.

use crate::filter::{PolicyPhrases, paragraphs, strip};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Removes quotation marks around the whole text. In a multi-line text only if the first line does not itself end in
/// one (then the marks belong to lines).
pub fn remove_quotation(text: &str) -> Cow<'_, str> {
    let quoted = text.len() >= 2 && text.starts_with('"') && text.ends_with('"');
    if !quoted || strip(text).chars().nth(2).is_none() {
        return Cow::Borrowed(text);
    }
    let several = strip(text).contains('\n');
    let first = text.split('\n').next().unwrap_or("");
    if several && first.ends_with('"') {
        return Cow::Borrowed(text);
    }
    Cow::Borrowed(&text[1..text.len() - 1])
}

/// Removes paragraphs with policy phrases at the top or bottom of a text (C4's phrases, as in NeMo Curator).
#[derive(Clone, Debug)]
pub struct BoilerplateRemover {
    phrases: PolicyPhrases,
    only_at_ends: bool,
}

impl BoilerplateRemover {
    /// With `only_at_ends`, such paragraphs are removed if they are contiguous at the top or the bottom, and the text
    /// is unchanged if they are elsewhere; otherwise a single such paragraph empties the text.
    pub fn new(only_at_ends: bool) -> BoilerplateRemover {
        BoilerplateRemover { phrases: PolicyPhrases::new(), only_at_ends }
    }

    /// Removes boilerplate from `text`; empty if it contains "lorem ipsum".
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.phrases.any(text) {
            return Cow::Borrowed(text);
        }
        let mut found = Vec::new();
        let mut count = 0;
        for (i, paragraph) in paragraphs(text).enumerate() {
            let (policy, lorem) = self.phrases.look(paragraph);
            if lorem || policy && !self.only_at_ends {
                return Cow::Borrowed("");
            }
            if policy {
                found.push(i);
            }
            count += 1;
        }
        let (Some(&first), Some(&last)) = (found.first(), found.last()) else { return Cow::Borrowed(text) };
        let together = last - first + 1 == found.len();
        if found.len() == count || !together || first != 0 && last + 1 != count {
            return Cow::Borrowed(text);
        }
        let kept: Vec<&str> =
            paragraphs(text).enumerate().filter(|(i, _)| !found.contains(i)).map(|(_, p)| p).collect();
        Cow::Owned(kept.join("\n\n"))
    }
}

/// One end of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SliceAt {
    /// A character by number, from the end when negative, as Python counts.
    Index(i64),
    /// A text: its first occurrence on the left, its last on the right.
    Text(String),
}

/// Which part of a text stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SliceOptions {
    /// Where the part begins: the number of a character, counted from 0 or below 0 from the end, or the first place of a
    /// text; none for the begin. A text that is not there empties the document.
    pub left: Option<SliceAt>,
    /// Where the part ends: the number of the character behind it, counted as `left`, or the last place of a text; none for
    /// the end.
    pub right: Option<SliceAt>,
    /// Whether a text that `left` names belongs to the part.
    pub include_left: bool,
    /// Whether a text that `right` names belongs to the part.
    pub include_right: bool,
    /// Removes white space around the part.
    pub strip: bool,
}

impl Default for SliceOptions {
    fn default() -> Self {
        SliceOptions { left: None, right: None, include_left: true, include_right: true, strip: true }
    }
}

/// Slice of `text` described by `options`; empty if a delimiting text is missing.
pub fn slice<'a>(text: &'a str, options: &SliceOptions) -> Cow<'a, str> {
    let at = |index: i64| {
        let offset = |n: u64| text.char_indices().nth(n as usize).map_or(text.len(), |(at, _)| at);
        match u64::try_from(index) {
            Ok(n) => offset(n),
            Err(_) => offset((text.chars().count() as u64).saturating_sub(index.unsigned_abs())),
        }
    };
    let left = match &options.left {
        None => Some(0),
        Some(SliceAt::Index(i)) => Some(at(*i)),
        Some(SliceAt::Text(t)) => text.find(t).map(|a| if options.include_left { a } else { a + t.len() }),
    };
    let right = match &options.right {
        None => Some(text.len()),
        Some(SliceAt::Index(i)) => Some(at(*i)),
        Some(SliceAt::Text(t)) => text.rfind(t).map(|a| if options.include_right { a + t.len() } else { a }),
    };
    let (Some(left), Some(right)) = (left, right) else { return Cow::Borrowed("") };
    let part = text.get(left..right).unwrap_or("");
    Cow::Borrowed(if options.strip { strip(part) } else { part })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotation() {
        let check = |text: &str, expected: &str| assert_eq!(remove_quotation(text), expected);
        check("\"quoted\"", "quoted");
        check("\"\"", "\"\"");
        check("\"a\"\n\"b\"", "\"a\"\n\"b\"");
        check("\"a\nb\"", "a\nb");
        check("a \"b\"", "a \"b\"");
    }

    #[test]
    fn boilerplate() {
        let check =
            |text: &str, expected: &str| assert_eq!(BoilerplateRemover::new(true).apply(text), expected);
        check("text\n\nour privacy policy", "text");
        check("Terms of Use\n\nuse cookies\n\ntext", "text");
        check("a\n\nprivacy policy\n\nb", "a\n\nprivacy policy\n\nb");
        check("privacy policy", "privacy policy");
        check("a\n\nLorem Ipsum", "");
        assert_eq!(BoilerplateRemover::new(false).apply("a\n\nprivacy policy\n\nb"), "");
    }

    #[test]
    fn slices() {
        let at = |s: &str| Some(SliceAt::Text(s.into()));
        let check = |o: SliceOptions, expected: &str| assert_eq!(slice("héad - body - tail", &o), expected);
        check(
            SliceOptions {
                left: Some(SliceAt::Index(1)),
                right: Some(SliceAt::Index(-1)),
                ..Default::default()
            },
            "éad - body - tai",
        );
        check(
            SliceOptions {
                left: at("- "),
                right: at(" -"),
                include_left: false,
                include_right: false,
                strip: true,
            },
            "body",
        );
        check(SliceOptions { left: at("missing"), ..Default::default() }, "");
        check(
            SliceOptions {
                left: Some(SliceAt::Index(9)),
                right: Some(SliceAt::Index(3)),
                ..Default::default()
            },
            "",
        );
    }
}
