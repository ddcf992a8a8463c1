//! C4's page cleaning (Raffel et al. 2020, 2.2) with datatrove's semantics: lines are dropped individually, some
//! lines cause the page to be rejected, and a page needs a minimum number of sentences. The list of bad words is
//! supplied by the user.

use super::Refusal;
use super::lines::fast_strip;
use super::unicode::{count_chars, is_space, split_lines};
use crate::Error;
use aho_corasick::{AhoCorasick, AhoCorasickKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::PathBuf;

/// Thresholds of C4; the defaults are datatrove's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct C4Options {
    /// Removes `[12]`, `[edit]` and `[citation needed]` from lines.
    pub remove_citations: bool,
    /// Drops lines that do not end in `. ? ! " '`, or that end in `...`.
    pub terminal_punctuation: bool,
    /// Pages with fewer sentences in the lines that remain are refused (C4: 5); 0 for no rule.
    pub min_sentences: usize,
    /// Lines of fewer words are dropped (C4: 3); 0 for no rule.
    pub min_words_per_line: usize,
    /// Lines with a word of more characters are dropped (datatrove: 1000).
    pub max_word_length: usize,
    /// Refuses pages with "lorem ipsum".
    pub lorem_ipsum: bool,
    /// Drops lines that mention JavaScript.
    pub javascript: bool,
    /// Refuses pages with `{`.
    pub curly_bracket: bool,
    /// Drops lines with policy phrases: "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of
    /// cookies", "use cookies".
    pub policy: bool,
    /// Words that condemn a page, in lower case; each is looked for between characters that are no letters, digits or `_`.
    pub bad_words: Vec<String>,
    /// A file with more of them, one a line.
    pub bad_words_file: Option<PathBuf>,
}

impl Default for C4Options {
    fn default() -> Self {
        C4Options {
            remove_citations: true,
            terminal_punctuation: true,
            min_sentences: 5,
            min_words_per_line: 3,
            max_word_length: 1000,
            lorem_ipsum: true,
            javascript: true,
            curly_bracket: true,
            policy: true,
            bad_words: Vec::new(),
            bad_words_file: None,
        }
    }
}

const LOREM: usize = 0;
const JAVASCRIPT: usize = 1;
const PHRASES: [&str; 8] = [
    "lorem ipsum",
    "javascript",
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
];

/// Compiled rules of C4.
#[derive(Clone, Debug)]
pub struct C4 {
    options: C4Options,
    phrases: AhoCorasick,
    bad_words: Option<AhoCorasick>,
}

/// Outcome for a line.
enum Line<'a> {
    Kept(Cow<'a, str>),
    Dropped,
    Condemns(&'static str),
}

impl C4 {
    /// Compiles `options`.
    ///
    /// # Errors
    /// [`Error::Option`] if the bad words are too many for an automaton, or one of them is empty; [`Error::Read`] for
    /// their file.
    pub fn new(options: &C4Options) -> Result<C4, Error> {
        let refused = |found: String, advice: &str| Error::Option {
            piece: "c4",
            key: "bad_words".to_string(),
            found,
            advice: advice.to_string(),
        };
        if options.bad_words.iter().any(String::is_empty) {
            return Err(refused("a list with an empty word".into(), "remove it: it would match everywhere"));
        }
        let phrases = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::DFA))
            .build(PHRASES)
            .map_err(|e| refused(e.to_string(), "this is a fault of the program"))?;
        let mut words = options.bad_words.clone();
        if let Some(path) = &options.bad_words_file {
            let text = std::fs::read_to_string(path).map_err(|e| Error::read(path, e))?;
            words.extend(text.lines().map(|line| line.trim().to_lowercase()).filter(|line| !line.is_empty()));
        }
        let bad_words = if words.is_empty() {
            None
        } else {
            Some(AhoCorasick::new(&words).map_err(|e| refused(e.to_string(), "shorten the list"))?)
        };
        Ok(C4 { options: options.clone(), phrases, bad_words })
    }

    /// Returns the remaining lines of `text`, joined by newlines.
    ///
    /// # Errors
    /// A [`Refusal`]: `c4_lorem_ipsum`, `c4_curly_bracket`, `c4_bad_words`, `c4_too_few_sentences` (value: sentences).
    pub fn clean(&self, text: &str) -> Result<String, Refusal> {
        let mut kept = String::with_capacity(text.len());
        let mut sentences = 0;
        for line in split_lines(text) {
            match self.line(fast_strip(line)) {
                Line::Dropped => {}
                Line::Condemns(reason) => return Err(Refusal { reason, value: 1.0 }),
                Line::Kept(line) => {
                    if self.options.min_sentences > 0 {
                        sentences += count_sentences(&line);
                    }
                    if !kept.is_empty() {
                        kept.push('\n');
                    }
                    kept.push_str(&line);
                }
            }
        }
        if sentences < self.options.min_sentences {
            return Err(Refusal { reason: "c4_too_few_sentences", value: sentences as f64 });
        }
        if let Some(bad_words) = &self.bad_words
            && holds_word(bad_words, &kept.to_lowercase())
        {
            return Err(Refusal { reason: "c4_bad_words", value: 1.0 });
        }
        kept.truncate(kept.trim_end_matches(is_space).len());
        Ok(kept)
    }

    fn line<'a>(&self, line: &'a str) -> Line<'a> {
        let o = &self.options;
        let too_long = line.len() > o.max_word_length
            && line.split(is_space).any(|w| count_chars(w.as_bytes()) > o.max_word_length);
        if too_long {
            return Line::Dropped;
        }
        let cleaned = if o.remove_citations { without_citations(line) } else { Cow::Borrowed(line) };
        if o.terminal_punctuation
            && (!cleaned.ends_with(['.', '?', '!', '"', '\'']) || cleaned.ends_with("..."))
        {
            return Line::Dropped;
        }
        let words = line.split(is_space).filter(|w| !w.is_empty()).take(o.min_words_per_line).count();
        if words < o.min_words_per_line {
            return Line::Dropped;
        }
        let (mut lorem, mut javascript, mut policy) = (false, false, false);
        for found in self.phrases.find_overlapping_iter(cleaned.as_ref()) {
            match found.pattern().as_usize() {
                LOREM => lorem = true,
                JAVASCRIPT => javascript = true,
                _ => policy = true,
            }
        }
        if o.lorem_ipsum && lorem {
            Line::Condemns("c4_lorem_ipsum")
        } else if o.javascript && javascript {
            Line::Dropped
        } else if o.curly_bracket && cleaned.contains('{') {
            Line::Condemns("c4_curly_bracket")
        } else if o.policy && policy {
            Line::Dropped
        } else {
            Line::Kept(cleaned)
        }
    }
}

/// Removes `[digits]`, `[edit]` and `[citation needed]` from `line`.
fn without_citations(line: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut done = 0;
    for at in memchr::memchr_iter(b'[', line.as_bytes()) {
        if at < done {
            continue;
        }
        let rest = &line[at + 1..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let inside = if rest[digits..].starts_with(']') {
            Some(digits)
        } else {
            ["edit", "citation needed"]
                .iter()
                .find(|w| rest.starts_with(**w) && rest[w.len()..].starts_with(']'))
                .map(|w| w.len())
        };
        if let Some(inside) = inside {
            out.push_str(&line[done..at]);
            done = at + inside + 2;
        }
    }
    if done == 0 {
        return Cow::Borrowed(line);
    }
    out.push_str(&line[done..]);
    Cow::Owned(out)
}

const ABBREVIATIONS: [&str; 21] = [
    "mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "etc", "vol", "fig", "inc", "ltd", "co", "corp",
    "gen", "col", "rev", "e.g", "i.e",
];

/// Number of sentences in a line: runs of `.`, `!`, `?` (or sentence ends of other scripts) at the end of a word,
/// unless the word is an abbreviation or a single letter; text after the last one counts as a sentence too.
pub(crate) fn count_sentences(line: &str) -> usize {
    let mut sentences = 0;
    let mut open = false;
    for word in line.split(is_space).filter(|w| !w.is_empty()) {
        let core = word.trim_end_matches(['"', '\'', ')', ']', '”', '’', '»']);
        let bare = core.trim_end_matches(super::lines::is_terminal);
        let ends = bare.len() < core.len() && !is_abbreviation(bare, &core[bare.len()..]);
        sentences += usize::from(ends);
        open = !ends;
    }
    sentences + usize::from(open)
}

fn is_abbreviation(bare: &str, end: &str) -> bool {
    if end != "." {
        return false;
    }
    let word = bare.trim_start_matches(['(', '"', '\'', '[', '“']);
    let single = word.chars().count() == 1 && word.chars().all(char::is_uppercase);
    single || ABBREVIATIONS.iter().any(|a| word.eq_ignore_ascii_case(a))
}

fn holds_word(words: &AhoCorasick, text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    words
        .find_overlapping_iter(text)
        .any(|found| !text[..found.start()].ends_with(is_word) && !text[found.end()..].starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &C4Options, text: &str, expected: Result<&str, &str>) {
        let c4 = C4::new(options).unwrap();
        let found = c4.clean(text);
        assert_eq!(found.as_deref().map_err(|r| r.reason), expected, "{text}");
    }

    #[test]
    fn lines_and_pages() {
        let few = C4Options { min_sentences: 1, ..C4Options::default() };
        check(
            &few,
            "Menu\nThis line stays here[12].\nToo short.\nAnd so on and on...",
            Ok("This line stays here."),
        );
        check(&few, "Please enable JavaScript to go on.\nThis one is fine.", Ok("This one is fine."));
        check(&few, "See our privacy policy for this.\nThis one is fine.", Ok("This one is fine."));
        check(&few, "Lorem ipsum dolor sit amet.", Err("c4_lorem_ipsum"));
        check(&few, "A function f() { is here.", Err("c4_curly_bracket"));
        check(&few, "Only a heading", Err("c4_too_few_sentences"));
        check(&C4Options::default(), "One is here. Two is here.", Err("c4_too_few_sentences"));
        let bad = C4Options { bad_words: vec!["ugly".into()], min_sentences: 1, ..C4Options::default() };
        check(&bad, "What an Ugly thing.", Err("c4_bad_words"));
        check(&bad, "What an uglyish thing.", Ok("What an uglyish thing."));
    }

    #[test]
    fn sentences() {
        assert_eq!(count_sentences("Mr. Smith came. He saw J. Doe! And?"), 3);
        assert_eq!(count_sentences("He said \"no.\" Then left"), 2);
        assert_eq!(count_sentences(""), 0);
    }
}
