//! What is filtered and at which thresholds. The defaults are the published ones.

use super::catalog::Set;
use serde::{Deserialize, Serialize};

/// How words are found for the filters of the Curator sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WordRule {
    /// `dictionary` where `non_english` is among the sets, else `spaces`.
    #[default]
    Auto,
    /// Between white space, as Python's `str.split`.
    Spaces,
    /// Word boundaries of Unicode (UAX 29): every ideograph is a word.
    Unicode,
    /// Between white space, and by dictionary where text is written without it: Chinese, Japanese, Thai, Lao, Burmese,
    /// Khmer. There marks are words too, as they are for jieba and MeCab, which Curator asks. The filter `punctuation`
    /// takes the ends of sentences of all scripts then, where Curator knows `. ? ! " '` and drops all Chinese.
    Dictionary,
}

impl WordRule {
    /// The rule that `auto` stands for.
    pub(super) fn with_sets(self, sets: &[Set]) -> WordRule {
        match self {
            WordRule::Auto if sets.contains(&Set::NonEnglish) => WordRule::Dictionary,
            WordRule::Auto => WordRule::Spaces,
            rule => rule,
        }
    }
}

/// The threshold of one n-gram length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NGramLimit {
    /// Words of the n-gram, 2 to 16.
    pub n: u8,
    /// The highest share of characters that is kept.
    pub max: f64,
}

fn limits(list: &[(u8, f64)]) -> Vec<NGramLimit> {
    list.iter().map(|&(n, max)| NGramLimit { n, max }).collect()
}

fn top_limits() -> Vec<NGramLimit> {
    limits(&[(2, 0.20), (3, 0.18), (4, 0.16)])
}

fn dup_limits() -> Vec<NGramLimit> {
    limits(&[(5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)])
}

/// Which filters run and their thresholds. A key is the name of its filter; a single number is the bound that its
/// publication states (a highest or lowest share), a pair is lowest and highest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilterOptions {
    /// The published selections that run, in this order.
    pub sets: Vec<Set>,
    /// Further filters by name.
    pub with: Vec<String>,
    /// Filters of the sets that do not run, by name.
    pub without: Vec<String>,
    /// How words are found (Curator sets).
    pub words: WordRule,
    /// Longer texts are refused as `too_long`, bytes; bounds the memory of a scan to about 8 times this.
    pub max_bytes: usize,
    /// Highest share of characters outside `[a-zA-Z0-9\n?!,.]`.
    pub alpha_numeric: f64,
    /// Highest share of words that are symbols.
    pub symbol_to_word: f64,
    /// Highest share of digits.
    pub numbers_ratio: f64,
    /// Highest share of characters in URLs.
    pub urls_ratio: f64,
    /// Highest share of white space.
    pub white_space: f64,
    /// Highest share of brackets.
    pub parentheses_ratio: f64,
    /// Highest share of paragraphs with policy phrases.
    pub boilerplate_string_ratio: f64,
    /// Lowest share of distinct lines.
    pub repeated_lines: f64,
    /// Lowest share of distinct paragraphs.
    pub repeated_paragraphs: f64,
    /// Lowest share of characters in distinct lines.
    pub repeated_lines_char: f64,
    /// Lowest share of characters in distinct paragraphs.
    pub repeated_paragraphs_char: f64,
    /// Fewest and most words.
    pub word_count: (f64, f64),
    /// Highest share of lines without an end mark: `. ? ! " '`, with the words `dictionary` those of all scripts.
    pub punctuation: f64,
    /// Lowest share of words with a letter.
    pub words_without_alphabets: f64,
    /// Fewest common English words.
    pub common_english_words: f64,
    /// Lowest and highest mean of characters per word.
    pub mean_word_length: (f64, f64),
    /// Characters that the longest word may have.
    pub max_word_length: f64,
    /// Highest share of lines that are cut off.
    pub ellipsis: f64,
    /// Highest shares of the most frequent n-grams.
    pub repeating_top_ngrams: Vec<NGramLimit>,
    /// Highest shares of repeated n-grams.
    pub repeating_dup_ngrams: Vec<NGramLimit>,
    /// Highest share of lines with bullets.
    pub bullet_ratio: f64,
    /// For the filter `substring`: what the text must hold, and where.
    pub substring: SubstringOptions,
    /// Gopher's rules as datatrove has them.
    pub gopher: GopherOptions,
    /// FineWeb's own rules.
    pub fineweb: FineWebOptions,
    /// mC4: the third longest line has at least this many characters.
    pub c4_paragraphs: f64,
}

impl Default for FilterOptions {
    fn default() -> Self {
        FilterOptions {
            sets: vec![Set::English],
            with: Vec::new(),
            without: Vec::new(),
            words: WordRule::Auto,
            max_bytes: 64 << 20,
            alpha_numeric: 0.25,
            symbol_to_word: 0.1,
            numbers_ratio: 0.15,
            urls_ratio: 0.2,
            white_space: 0.25,
            parentheses_ratio: 0.1,
            boilerplate_string_ratio: 0.4,
            repeated_lines: 0.7,
            repeated_paragraphs: 0.7,
            repeated_lines_char: 0.8,
            repeated_paragraphs_char: 0.8,
            word_count: (50.0, 100_000.0),
            punctuation: 0.85,
            words_without_alphabets: 0.8,
            common_english_words: 2.0,
            mean_word_length: (3.0, 10.0),
            max_word_length: 1000.0,
            ellipsis: 0.3,
            repeating_top_ngrams: top_limits(),
            repeating_dup_ngrams: dup_limits(),
            bullet_ratio: 0.9,
            substring: SubstringOptions::default(),
            gopher: GopherOptions::default(),
            fineweb: FineWebOptions::default(),
            c4_paragraphs: 200.0,
        }
    }
}

/// Where a substring must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// At the begin.
    Prefix,
    /// At the end.
    Suffix,
    /// Anywhere.
    #[default]
    Any,
}

/// The substring filter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubstringOptions {
    /// What the text must hold.
    pub text: String,
    /// Where.
    pub position: Position,
}

/// Gopher's rules with datatrove's defaults (Rae et al. 2021, A1.1 and table A1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GopherOptions {
    /// Fewest and most words that are no punctuation.
    pub word_count: (f64, f64),
    /// Lowest and highest mean of characters per such word.
    pub mean_word_length: (f64, f64),
    /// Highest number of `#`, and of ellipses, per word.
    pub symbol_word_ratio: f64,
    /// Highest share of lines with bullets.
    pub bullet_lines_ratio: f64,
    /// Highest share of lines that end in an ellipsis.
    pub ellipsis_lines_ratio: f64,
    /// Lowest share of words with a letter.
    pub alpha_words_ratio: f64,
    /// Fewest distinct common English words.
    pub stop_words: f64,
    /// Highest share of repeated lines.
    pub dup_line_frac: f64,
    /// Highest share of repeated paragraphs.
    pub dup_para_frac: f64,
    /// Highest share of characters in repeated lines.
    pub dup_line_char_frac: f64,
    /// Highest share of characters in repeated paragraphs.
    pub dup_para_char_frac: f64,
    /// Highest shares of the most frequent n-grams.
    pub top_ngrams: Vec<NGramLimit>,
    /// Highest shares of repeated n-grams.
    pub dup_ngrams: Vec<NGramLimit>,
}

impl Default for GopherOptions {
    fn default() -> Self {
        GopherOptions {
            word_count: (50.0, 100_000.0),
            mean_word_length: (3.0, 10.0),
            symbol_word_ratio: 0.1,
            bullet_lines_ratio: 0.9,
            ellipsis_lines_ratio: 0.3,
            alpha_words_ratio: 0.8,
            stop_words: 2.0,
            dup_line_frac: 0.3,
            dup_para_frac: 0.3,
            dup_line_char_frac: 0.2,
            dup_para_char_frac: 0.2,
            top_ngrams: top_limits(),
            dup_ngrams: dup_limits(),
        }
    }
}

/// FineWeb's rules with datatrove's defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FineWebOptions {
    /// Lowest share of lines that end in terminal punctuation.
    pub line_punct: f64,
    /// Whether a text without any such line passes.
    pub line_punct_exclude_zero: bool,
    /// Highest share of short lines.
    pub short_line: f64,
    /// Characters up to which a line is short.
    pub short_line_length: u32,
    /// Highest share of characters in repeated lines.
    pub char_duplicates: f64,
    /// Most newlines per word.
    pub new_line: f64,
}

impl Default for FineWebOptions {
    fn default() -> Self {
        FineWebOptions {
            line_punct: 0.12,
            line_punct_exclude_zero: false,
            short_line: 0.67,
            short_line_length: 30,
            char_duplicates: 0.01,
            new_line: 0.3,
        }
    }
}
