//! Filters of source code: comments, length, XML in disguise, tables of numbers, HTML that is mostly markup, and
//! rules by file extension (StarCoder, Li et al. 2023, as in NeMo Curator).

use super::comments::CommentStyle;
use super::unicode::count_chars;
use super::{Refusal, Score};
use crate::Error;
use html5gum::{Token, Tokenizer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Thresholds; the defaults are those of Curator's classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CodeOptions {
    /// How comments are written; without it comments are not counted.
    pub comments: Option<CommentStyle>,
    /// Lowest and highest share of characters in comments.
    pub comment_ratio: (f64, f64),
    /// Fewest and most lines.
    pub num_lines: (f64, f64),
    /// Refuse files with an XML declaration in this many first characters; 0 for no rule.
    pub xml_header_chars: usize,
    /// Lowest share of letters.
    pub alpha: f64,
    /// Lowest share of visible text in HTML; 0 for no rule.
    pub html_boilerplate: f64,
    /// Fewest characters of visible text in HTML.
    pub html_min_chars: usize,
}

impl Default for CodeOptions {
    fn default() -> Self {
        CodeOptions {
            comments: None,
            comment_ratio: (0.01, 0.85),
            num_lines: (10.0, 20_000.0),
            xml_header_chars: 100,
            alpha: 0.25,
            html_boilerplate: 0.0,
            html_min_chars: 100,
        }
    }
}

/// The rules of one extension.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExtensionRule {
    /// Whether such files are wanted at all.
    pub include: bool,
    /// Characters of the longest line; with it the mean line may have 100.
    pub max_line: Option<u64>,
    /// Lowest share of `[a-zA-Z0-9\n?!,.]`.
    pub min_alphanumeric: Option<f64>,
    /// Lowest share of letters.
    pub min_alphabetic: Option<f64>,
}

/// Rules by language and extension, as in the CSV table of the StarCoder project.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtensionRules {
    rules: BTreeMap<(String, String), ExtensionRule>,
}

impl ExtensionRules {
    /// Reads a table with the columns `language, extension, Include, Long_line_threshold, Alphanum_threshold,
    /// Alpha filter`; values that are no numbers mean no rule.
    ///
    /// # Errors
    /// [`Error::Option`] when a column is missing or no row is left.
    pub fn parse(csv: &str) -> Result<ExtensionRules, Error> {
        let fault = |found: String, advice: &str| Error::Option {
            piece: "code",
            key: "extensions".to_string(),
            found,
            advice: advice.to_string(),
        };
        let mut lines = csv.lines();
        let head = csv_fields(lines.next().unwrap_or(""));
        let column = |name: &str| {
            head.iter().position(|h| h == name).ok_or_else(|| {
                fault(
                    format!("a table without the column `{name}`"),
                    "give StarCoder's table with its first line",
                )
            })
        };
        let (language, extension, include) = (column("language")?, column("extension")?, column("Include")?);
        let (line, alnum, alpha) =
            (column("Long_line_threshold")?, column("Alphanum_threshold")?, column("Alpha filter")?);
        let mut rules = BTreeMap::new();
        for row in lines.map(csv_fields) {
            let field = |i: usize| row.get(i).map_or("", String::as_str);
            let rule = ExtensionRule {
                include: field(include) == "1",
                max_line: field(line).trim().parse().ok(),
                min_alphanumeric: field(alnum).trim().parse().ok(),
                min_alphabetic: field(alpha).trim().parse().ok(),
            };
            if !field(language).is_empty() {
                rules.insert((field(language).to_string(), field(extension).to_string()), rule);
            }
        }
        if rules.is_empty() {
            return Err(fault("a table without rows".to_string(), "add rows"));
        }
        Ok(ExtensionRules { rules })
    }

    /// Refuses `source` by the rules of its language (`C#`, `Jupyter Notebook`, ..) and extension: `extension_unknown`,
    /// `extension_excluded`, `extension_line_length`, `extension_alphanumeric`, `extension_alphabetic`.
    ///
    /// # Errors
    /// The [`Refusal`] with the measured value.
    pub fn check(&self, source: &str, language: &str, extension: &str) -> Result<(), Refusal> {
        let language = match language {
            "C#" => "c-sharp".to_string(),
            "F#" => "f-sharp".to_string(),
            other => other.to_lowercase().replace(' ', "-"),
        };
        let Some(rule) = self.rules.get(&(language, extension.to_string())) else {
            return Err(Refusal { reason: "extension_unknown", value: 0.0 });
        };
        let refuse = |reason, value| Err(Refusal { reason, value });
        if !rule.include {
            return refuse("extension_excluded", 0.0);
        }
        let chars = count_chars(source.as_bytes());
        if let Some(max) = rule.max_line {
            let (mut lines, mut longest) = (0usize, 0);
            for line in source.split('\n') {
                lines += 1;
                longest = longest.max(count_chars(line.as_bytes()));
            }
            let mean = (chars + 1) as f64 / lines as f64 - 1.0;
            if longest as u64 > max || mean > 100.0 {
                return refuse("extension_line_length", longest as f64);
            }
        }
        let share = |count: usize| count as f64 / chars.max(1) as f64;
        if let Some(min) = rule.min_alphanumeric {
            let plain = source.bytes().filter(|b| b.is_ascii_alphanumeric() || b"\n?!,.".contains(b)).count();
            if share(plain) < min {
                return refuse("extension_alphanumeric", share(plain));
            }
        }
        if let Some(min) = rule.min_alphabetic {
            let letters = source.chars().filter(|c| c.is_alphabetic()).count();
            if share(letters) < min {
                return refuse("extension_alphabetic", share(letters));
            }
        }
        Ok(())
    }
}

fn csv_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => {
                if let Some(field) = fields.last_mut() {
                    field.push(c);
                }
            }
        }
    }
    fields
}

/// The code filters compiled.
#[derive(Clone, Debug)]
pub struct CodeFilters {
    options: CodeOptions,
}

impl CodeFilters {
    /// Compiles `options`.
    pub fn new(options: &CodeOptions) -> CodeFilters {
        CodeFilters { options: options.clone() }
    }

    /// Refuses at the first filter that does: `empty`, `num_lines`, `xml_header`, `alpha`, `comment_ratio`,
    /// `html_boilerplate`.
    ///
    /// # Errors
    /// The [`Refusal`] with the measured value.
    pub fn check(&self, source: &str) -> Result<(), Refusal> {
        let mut scores = Vec::new();
        self.scores(source, &mut scores)
    }

    /// Measures all filters into `scores` (cleared first) and gives the verdict.
    ///
    /// # Errors
    /// The [`Refusal`] of the first filter that refuses.
    pub fn scores(&self, source: &str, scores: &mut Vec<Score>) -> Result<(), Refusal> {
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
        if o.xml_header_chars > 0 {
            let end = source.char_indices().nth(o.xml_header_chars).map_or(source.len(), |(at, _)| at);
            add("xml_header", f64::from(u8::from(source[..end].contains("<?xml version="))), 0.0, 0.0);
        }
        let letters = match source.is_ascii() {
            true => source.bytes().filter(u8::is_ascii_alphabetic).count(),
            false => source.chars().filter(|c| c.is_alphabetic()).count(),
        };
        add("alpha", letters as f64 / chars, o.alpha, f64::INFINITY);
        if let Some(style) = o.comments {
            let share = style.comment_chars(source).map_or(0.0, |c| c as f64 / chars);
            add("comment_ratio", share, o.comment_ratio.0, o.comment_ratio.1);
        }
        if o.html_boilerplate > 0.0 {
            let visible = visible_chars(source);
            let share = if visible < o.html_min_chars { 0.0 } else { visible as f64 / chars };
            add("html_boilerplate", share, o.html_boilerplate, f64::INFINITY);
        }
        match scores.iter().find(|s| !s.keep) {
            Some(s) => Err(Refusal { reason: s.name, value: s.value }),
            None => Ok(()),
        }
    }
}

/// Characters of text in HTML outside scripts and styles.
fn visible_chars(html: &str) -> usize {
    let mut hidden = 0usize;
    let mut visible = 0;
    for token in Tokenizer::new(html) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) if is_hidden(&tag.name) && !tag.self_closing => hidden += 1,
            Token::EndTag(tag) if is_hidden(&tag.name) => hidden = hidden.saturating_sub(1),
            Token::String(text) if hidden == 0 => visible += count_chars(&text),
            _ => {}
        }
    }
    visible
}

fn is_hidden(name: &[u8]) -> bool {
    matches!(name, b"script" | b"style")
}

/// Filters over the number of tokens, which the caller's tokenizer gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenFilter {
    /// Fewest and most tokens.
    pub token_count: (u64, u64),
    /// Fewest characters per token (Curator: 2.5 for code); 0 for no rule.
    pub fertility: f64,
}

impl Default for TokenFilter {
    fn default() -> Self {
        TokenFilter { token_count: (0, u64::MAX), fertility: 0.0 }
    }
}

impl TokenFilter {
    /// Refuses text of `tokens` tokens as `token_count` or `tokenizer_fertility`.
    ///
    /// # Errors
    /// The [`Refusal`] with the measured value.
    pub fn check(&self, text: &str, tokens: u64) -> Result<(), Refusal> {
        if tokens < self.token_count.0 || tokens > self.token_count.1 {
            return Err(Refusal { reason: "token_count", value: tokens as f64 });
        }
        let value = if tokens == 0 { -1.0 } else { count_chars(text.as_bytes()) as f64 / tokens as f64 };
        if value < self.fertility {
            return Err(Refusal { reason: "tokenizer_fertility", value });
        }
        Ok(())
    }
}
