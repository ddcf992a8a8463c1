//! Words that are refused in Rust sources because the field has plainer ones. The list is in the page itself.

use super::lex::{Kind, lex};
use super::source::Source;
use super::violation::Violation;

/// The page with the list, and the beginning of the list's line. The words are in backticks.
pub const PAGE: &str = "CONTRIBUTING.md";
const LIST: &str = "Refused in Rust sources:";

/// The words listed in the page.
///
/// # Errors
/// A message if the page has no such line.
pub fn listed(page: &str) -> Result<Vec<&str>, String> {
    let line = page.lines().find_map(|line| line.strip_prefix(LIST));
    let line = line.ok_or_else(|| format!("{PAGE} has no line `{LIST}`"))?;
    Ok(line.split('`').skip(1).step_by(2).collect())
}

/// Looks for the words in comments, identifiers and messages. String literals of tests may contain them, and so may
/// names in existing files (`rename = ".."`).
pub fn check(source: &Source, is_test: bool, words: &[&str]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut look = |line: usize, text: &str| {
        for (offset, text) in text.lines().enumerate() {
            for word in words.iter().filter(|word| parts(text).any(|part| part.eq_ignore_ascii_case(word))) {
                let message = format!("`{word}`: {PAGE}, Words, has plainer ones");
                found.push(Violation::new(source.path, line + offset, message));
            }
        }
    };
    let comments = lex(source.text).into_iter().filter(|token| token.kind == Kind::Comment);
    comments.for_each(|comment| look(comment.line, comment.text));
    for (at, token) in source.code.iter().enumerate() {
        let quoted = token.kind == Kind::Text
            && (is_test || source.in_test(at) || at > 1 && source.code[at - 2].is("rename"));
        if !quoted {
            look(token.line, token.text);
        }
    }
    found
}

/// The words of a text; identifiers are split at underscores and capitals.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).flat_map(|word| {
        let starts = |(at, c): (usize, char)| {
            c.is_uppercase() && word[..at].chars().next_back().is_some_and(char::is_lowercase)
        };
        let mut ends: Vec<usize> =
            word.char_indices().filter(|place| starts(*place)).map(|(at, _)| at).collect();
        ends.push(word.len());
        let begins = std::iter::once(0).chain(ends.clone());
        begins.zip(ends).map(|(from, to)| &word[from..to]).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let source = Source::new(path, text);
        check(&source, source.is_test_file(), &["told", "beside"]).iter().map(|found| found.line).collect()
    }

    #[test]
    fn words_are_found_in_comments_names_and_messages() {
        let path = "crates/a/src/b.rs";
        let text = "//! Told.\n/* a\nbeside */\nfn is_beside() { f(\"was told\", \"foretold, besides\") }\nstruct BesideIt;";
        assert_eq!(lines(path, text), [1, 3, 4, 4, 5]);
        assert_eq!(lines(path, "#[serde(rename = \"told\")]\nstruct A { told: u8 }"), [2]);
        assert_eq!(lines(path, "#[test]\nfn f() { g(\"told\"); told() }"), [2]);
        assert_eq!(lines("crates/a/tests/it/b.rs", "fn f() { \"told\" } // told"), [1]);
    }

    #[test]
    fn the_page_lists_the_words() {
        assert_eq!(
            listed("# Words\n\nRefused in Rust sources: `told`, `beside`.\n"),
            Ok(vec!["told", "beside"])
        );
        assert!(listed("# Words\n").is_err());
    }
}
