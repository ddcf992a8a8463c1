//! Filters of source code: comments, length, XML under other extensions, tables of numbers, HTML that is mostly
//! markup, generated files, and rules by file extension.

use super::comments::{CommentStyle, extension};
use super::extensions::ExtensionRules;
use super::generated::{is_generated, longest_line};
use super::ranges;
use super::unicode::count_chars;
use super::{Refusal, Score};
use crate::Error;
use html5gum::{Token, Tokenizer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Thresholds; the defaults are those of Curator's classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CodeOptions {
    /// How comments are written; with none they are not counted.
    pub comments: Option<CommentStyle>,
    /// Lowest and highest share of characters in comments (NeMo Curator: 0.01 and 0.85).
    pub comment_ratio: (f64, f64),
    /// Fewest and most lines (NeMo Curator: 10 and 20,000).
    pub num_lines: (f64, f64),
    /// Refuses files whose first ten lines say that a program wrote them, as `@generated` and `do not edit` do (not `.md`,
    /// `.txt` and `.rst`, which talk about such files).
    pub generated: bool,
    /// Most characters of the longest line; 0 for no rule. Longer ones are data or minified (StarCoder's rule: 1000).
    pub longest_line: f64,
    /// Refuses files with an XML declaration in this many first characters (NeMo Curator: 100); 0 for no rule.
    pub xml_header_chars: usize,
    /// Lowest share of characters that are letters (NeMo Curator: 0.25).
    #[schemars(range(max = 1))]
    pub alpha: f64,
    /// Lowest share of characters of HTML that are visible text (NeMo Curator: 0.2); 0 for no rule. A run of white space
    /// counts as one character, as a browser shows it, except in `pre` and `textarea`.
    #[schemars(range(max = 1))]
    pub html_boilerplate: f64,
    /// With `html_boilerplate`: files of fewer visible characters are refused (NeMo Curator: 100).
    pub html_min_chars: usize,
    /// A table of rules by language and extension (CSV with the columns language, extension, Include, Long_line_threshold,
    /// Alphanum_threshold, Alpha filter, as StarCoder's). Files of extensions that it does not list are refused.
    pub extensions: Option<PathBuf>,
    /// The column that holds a file's path, name or extension; of `id` the part in front of `#`.
    pub file_column: String,
    /// The column that names a file's programming language, for `extensions`. With none a file passes when one of the
    /// languages of its extension lets it.
    pub language_column: Option<String>,
}

/// Metadata of a source file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeFile<'a> {
    /// Path, name or extension.
    pub path: &'a str,
    /// Programming language, as named in the table of extensions.
    pub language: Option<&'a str>,
}

impl Default for CodeOptions {
    fn default() -> Self {
        CodeOptions {
            comments: Some(CommentStyle::Auto),
            comment_ratio: (0.01, 0.85),
            num_lines: (10.0, 20_000.0),
            generated: false,
            longest_line: 0.0,
            xml_header_chars: 100,
            alpha: 0.25,
            html_boilerplate: 0.0,
            html_min_chars: 100,
            extensions: None,
            file_column: "id".to_string(),
            language_column: None,
        }
    }
}

/// Compiled code filters.
#[derive(Clone, Debug)]
pub struct CodeFilters {
    options: CodeOptions,
    extensions: Option<ExtensionRules>,
}

impl CodeFilters {
    /// Compiles `options`.
    ///
    /// # Errors
    /// [`Error::Option`] for empty ranges and for a table of extensions without rules, [`Error::Read`] if the table
    /// cannot be read.
    pub fn new(options: &CodeOptions) -> Result<CodeFilters, Error> {
        ranges::ordered("code", "comment_ratio", options.comment_ratio)?;
        ranges::ordered("code", "num_lines", options.num_lines)?;
        let (least, most) = (options.comment_ratio.0, options.num_lines.1);
        ranges::lowest_share("code", "comment_ratio", least)?;
        ranges::highest("code", "num_lines", most)?;
        ranges::highest("code", "longest_line", options.longest_line)?;
        ranges::lowest_share("code", "alpha", options.alpha)?;
        ranges::lowest_share("code", "html_boilerplate", options.html_boilerplate)?;
        let extensions = options.extensions.as_deref().map(ExtensionRules::open).transpose()?;
        Ok(CodeFilters { options: options.clone(), extensions })
    }

    /// Applies the filters up to the first refusal: `empty`, `num_lines`, `generated`, `longest_line`, `xml_header`,
    /// `alpha`, `comment_ratio`, `html_boilerplate`, and the reasons of [`ExtensionRules::check`].
    ///
    /// # Errors
    /// The [`Refusal`] with the measured value.
    pub fn check(&self, source: &str, file: CodeFile<'_>) -> Result<(), Refusal> {
        let mut scores = Vec::new();
        self.scores(source, file, &mut scores)
    }

    /// Evaluates all filters into `scores` (cleared first) and returns the verdict.
    ///
    /// # Errors
    /// The [`Refusal`] of the first filter that rejects the file.
    pub fn scores(&self, source: &str, file: CodeFile<'_>, scores: &mut Vec<Score>) -> Result<(), Refusal> {
        scores.clear();
        if super::strip(source).is_empty() {
            return Err(Refusal { reason: "empty", value: 0.0 });
        }
        let o = &self.options;
        let chars = count_chars(source.as_bytes()) as f64;
        let mut add = |name, value: f64, low: f64, high: f64| {
            scores.push(Score { name, value, keep: low <= value && value <= high });
        };
        let lines = memchr::memchr_iter(b'\n', source.as_bytes()).count() + 1;
        add("num_lines", lines as f64, o.num_lines.0, o.num_lines.1);
        if o.generated {
            add("generated", f64::from(u8::from(is_generated(file.path, source))), 0.0, 0.0);
        }
        if o.longest_line > 0.0 {
            add("longest_line", longest_line(source) as f64, 0.0, o.longest_line);
        }
        if o.xml_header_chars > 0 {
            let end = source.char_indices().nth(o.xml_header_chars).map_or(source.len(), |(at, _)| at);
            add("xml_header", f64::from(u8::from(source[..end].contains("<?xml version="))), 0.0, 0.0);
        }
        let letters = if source.is_ascii() {
            source.bytes().filter(u8::is_ascii_alphabetic).count()
        } else {
            source.chars().filter(|c| c.is_alphabetic()).count()
        };
        add("alpha", letters as f64 / chars, o.alpha, f64::INFINITY);
        if let Some(style) = o.comments.and_then(|style| style.for_file(file.path)) {
            let share = style.comment_chars(source).map_or(0.0, |c| c as f64 / chars);
            add("comment_ratio", share, o.comment_ratio.0, o.comment_ratio.1);
        }
        if o.html_boilerplate > 0.0 {
            let visible = visible_chars(source);
            let share = if visible < o.html_min_chars { 0.0 } else { visible as f64 / chars };
            add("html_boilerplate", share, o.html_boilerplate, f64::INFINITY);
        }
        match (scores.iter().find(|s| !s.keep), &self.extensions) {
            (Some(s), _) => Err(Refusal { reason: s.name, value: s.value }),
            (None, Some(rules)) => rules.check(source, file.language, extension(file.path)),
            (None, None) => Ok(()),
        }
    }
}

/// Number of text characters in HTML outside scripts and styles; a run of white space between two tags counts as one.
///
/// NeMo Curator's parser (BeautifulSoup) collapses text that consists only of white space, as used for indentation;
/// here runs inside text are collapsed too.
fn visible_chars(html: &str) -> usize {
    let (mut hidden, mut verbatim) = (0usize, 0usize);
    let mut visible = 0;
    for token in Tokenizer::new(html) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) if is_hidden(&tag.name) && !tag.self_closing => hidden += 1,
            Token::EndTag(tag) if is_hidden(&tag.name) => hidden = hidden.saturating_sub(1),
            Token::StartTag(tag) if is_verbatim(&tag.name) && !tag.self_closing => verbatim += 1,
            Token::EndTag(tag) if is_verbatim(&tag.name) => verbatim = verbatim.saturating_sub(1),
            Token::String(text) if hidden == 0 && verbatim > 0 => visible += count_chars(&text),
            Token::String(text) if hidden == 0 => visible += shown_chars(&text),
            _ => {}
        }
    }
    visible
}

/// Number of characters, with every run of ASCII white space counted as one.
fn shown_chars(text: &[u8]) -> usize {
    let inner = text.windows(2).filter(|w| w[0].is_ascii_whitespace() && w[1].is_ascii_whitespace()).count();
    count_chars(text) - inner
}

fn is_verbatim(name: &[u8]) -> bool {
    matches!(name, b"pre" | b"textarea")
}

fn is_hidden(name: &[u8]) -> bool {
    matches!(name, b"script" | b"style")
}

/// Filters by the number of tokens, which the caller determines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenFilter {
    /// Minimum and maximum number of tokens.
    pub token_count: (f64, f64),
    /// Minimum number of characters per token (Curator: 2.5 for code); 0 for no rule.
    pub fertility: f64,
}

impl TokenFilter {
    /// Validates the bounds.
    ///
    /// # Errors
    /// [`Error::Option`] for an empty range.
    pub fn new(token_count: (f64, f64), fertility: f64) -> Result<TokenFilter, Error> {
        ranges::ordered("tokens", "token_count", token_count)?;
        ranges::highest("tokens", "token_count", token_count.1)?;
        ranges::highest("tokens", "fertility", fertility)?;
        Ok(TokenFilter { token_count, fertility })
    }

    /// Computes the scores of a text of `tokens` tokens: `token_count`, and `tokenizer_fertility` if there is a rule
    /// for it.
    pub fn scores(&self, text: &str, tokens: u64, scores: &mut Vec<Score>) {
        let (low, high) = self.token_count;
        let count = tokens as f64;
        scores.clear();
        scores.push(Score { name: "token_count", value: count, keep: low <= count && count <= high });
        if self.fertility > 0.0 {
            let value = if tokens == 0 { -1.0 } else { count_chars(text.as_bytes()) as f64 / count };
            scores.push(Score { name: "tokenizer_fertility", value, keep: value >= self.fertility });
        }
    }
}
