//! Options of the filters and their thresholds. The defaults are the published ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How words are found for the filters of the Curator sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WordRule {
    /// `dictionary` where `non_english` is among the sets, else `spaces`.
    #[default]
    Auto,
    /// Between white space, as Python's `str.split`.
    Spaces,
    /// Word boundaries of Unicode (UAX 29): every ideograph is a word.
    Unicode,
    /// Between white space, and by ICU's dictionaries where text is written without it: Chinese, Japanese, Thai, Lao,
    /// Burmese, Khmer. Marks are words there too.
    ///
    /// So they are for jieba and MeCab, which Curator asks. The filter `punctuation` takes the ends of sentences of all
    /// scripts then, where Curator knows `. ? ! " '` and drops all Chinese.
    Dictionary,
}

impl WordRule {
    /// Resolves `auto`.
    pub(super) fn with_sets(self, sets: &[Set]) -> WordRule {
        match self {
            WordRule::Auto if sets.contains(&Set::NonEnglish) => WordRule::Dictionary,
            WordRule::Auto => WordRule::Spaces,
            rule => rule,
        }
    }
}

/// The threshold of one n-gram length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NGramLimit {
    /// Words of the n-gram.
    #[schemars(range(min = 2, max = 16))]
    pub n: u8,
    /// The highest share of characters that is kept.
    #[schemars(range(min = 0))]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FilterOptions {
    /// The published selections of filters that run, in this order. The thresholds of `english` and `non_english` are the
    /// options below without a table, those of the others `gopher`, `fineweb` and `c4_paragraphs`.
    pub sets: Vec<Set>,
    /// Further filters by name: `pornographic_urls`, `substring`, and those of sets that do not run. The names are those in
    /// the report; a wrong one is answered with all of them.
    pub with: Vec<String>,
    /// Filters of the sets that do not run, by name.
    pub without: Vec<String>,
    /// How words are found for the filters of `english` and `non_english`.
    pub words: WordRule,
    /// Texts of more bytes are refused; a scan needs about 8 times this in memory.
    pub max_bytes: usize,
    /// Highest share of characters outside `[a-zA-Z0-9\n?!,.]` (set `english`).
    #[schemars(range(min = 0))]
    pub alpha_numeric: f64,
    /// Highest share of words that are an ellipsis or mostly `#` (Gopher: 0.1).
    #[schemars(range(min = 0))]
    pub symbol_to_word: f64,
    /// Highest share of characters that are digits 0 to 9.
    #[schemars(range(min = 0))]
    pub numbers_ratio: f64,
    /// Highest share of characters in URLs.
    #[schemars(range(min = 0))]
    pub urls_ratio: f64,
    /// Highest share of characters that are white space.
    #[schemars(range(min = 0))]
    pub white_space: f64,
    /// Highest share of characters that are round, square, curly or mathematical brackets.
    #[schemars(range(min = 0))]
    pub parentheses_ratio: f64,
    /// Highest share of paragraphs with policy phrases of C4 ("terms of use", "uses cookies"); one with "lorem ipsum" makes
    /// it 1.
    #[schemars(range(min = 0))]
    pub boilerplate_string_ratio: f64,
    /// Lowest share of lines that remain when each different line counts once (Gopher: 0.7).
    #[schemars(range(max = 1))]
    pub repeated_lines: f64,
    /// Lowest share of paragraphs that remain when each different one counts once (Gopher: 0.7).
    #[schemars(range(max = 1))]
    pub repeated_paragraphs: f64,
    /// Lowest share of characters in lines that remain when each different line counts once (Gopher: 0.8).
    #[schemars(range(max = 1))]
    pub repeated_lines_char: f64,
    /// Lowest share of characters in paragraphs that remain when each different one counts once (Gopher: 0.8).
    #[schemars(range(max = 1))]
    pub repeated_paragraphs_char: f64,
    /// Fewest and most words (Gopher: 50 and 100,000).
    pub word_count: (f64, f64),
    /// Highest share of lines that do not end in `. ? ! " '`; with the words `dictionary` the ends of sentences of all
    /// scripts count.
    #[schemars(range(min = 0))]
    pub punctuation: f64,
    /// Lowest share of words with a letter (set `english`; Gopher: 0.8).
    #[schemars(range(max = 1))]
    pub words_without_alphabets: f64,
    /// Fewest occurrences of the words the, be, to, of, and, that, have and with, all together (set `english`; Gopher: 2).
    pub common_english_words: f64,
    /// Lowest and highest mean of characters a word (Gopher: 3 and 10).
    pub mean_word_length: (f64, f64),
    /// Most characters of the longest word.
    #[schemars(range(min = 0))]
    pub max_word_length: f64,
    /// Highest share of lines that end in an ellipsis or in "read more" (Gopher: 0.3).
    #[schemars(range(min = 0))]
    pub ellipsis: f64,
    /// By length: the highest share of characters in occurrences of the text's most frequent n-gram of `n` words (Gopher).
    /// Texts of fewer words are refused.
    pub repeating_top_ngrams: Vec<NGramLimit>,
    /// By length: the highest share of characters in n-grams of `n` words that occur more than once (Gopher). Texts of
    /// fewer words are refused.
    pub repeating_dup_ngrams: Vec<NGramLimit>,
    /// Highest share of lines that begin with a bullet such as `•` (Gopher: 0.9).
    #[schemars(range(min = 0))]
    pub bullet_ratio: f64,
    /// Texts that the filter `substring` looks for; `with = ["substring"]` switches it on.
    pub substring: SubstringOptions,
    /// Thresholds of the sets `gopher_quality` and `gopher_repetition`.
    pub gopher: GopherOptions,
    /// Thresholds of the set `fine_web`.
    pub fineweb: FineWebOptions,
    /// Fewest characters of the third longest line (set `c4_paragraphs`; mC4: 200).
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SubstringOptions {
    /// Text that a document must contain to stay.
    pub text: String,
    /// Where it must be.
    pub position: Position,
}

/// Gopher's rules with datatrove's defaults (Rae et al. 2021, A1.1 and table A1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GopherOptions {
    /// Fewest and most words, marks not counted.
    pub word_count: (f64, f64),
    /// Lowest and highest mean of characters a word, marks not counted.
    pub mean_word_length: (f64, f64),
    /// Highest number of `#` a word, and of ellipses a word.
    #[schemars(range(min = 0))]
    pub symbol_word_ratio: f64,
    /// Highest share of lines that begin with `•` or `-`.
    #[schemars(range(min = 0))]
    pub bullet_lines_ratio: f64,
    /// Highest share of lines that end in an ellipsis.
    #[schemars(range(min = 0))]
    pub ellipsis_lines_ratio: f64,
    /// Lowest share of words with a letter, marks counted as words.
    #[schemars(range(max = 1))]
    pub alpha_words_ratio: f64,
    /// Fewest different ones of the words the, be, to, of, and, that, have and with.
    pub stop_words: f64,
    /// Highest share of lines that came before in the text.
    #[schemars(range(min = 0))]
    pub dup_line_frac: f64,
    /// Highest share of paragraphs that came before in the text.
    #[schemars(range(min = 0))]
    pub dup_para_frac: f64,
    /// Highest share of characters in lines that came before in the text.
    #[schemars(range(min = 0))]
    pub dup_line_char_frac: f64,
    /// Highest share of characters in paragraphs that came before in the text.
    #[schemars(range(min = 0))]
    pub dup_para_char_frac: f64,
    /// By length: the highest share of characters in occurrences of the text's most frequent n-gram of `n` words, marks
    /// counted as words.
    pub top_ngrams: Vec<NGramLimit>,
    /// By length: the highest share of characters in n-grams of `n` words that came before in the text, marks counted as
    /// words.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FineWebOptions {
    /// Lowest share of lines that end a sentence, by the marks of all scripts.
    #[schemars(range(max = 1))]
    pub line_punct: f64,
    /// Whether a text without any such line passes.
    pub line_punct_exclude_zero: bool,
    /// Highest share of lines of at most `short_line_length` characters.
    #[schemars(range(min = 0))]
    pub short_line: f64,
    /// Characters up to which a line is short.
    pub short_line_length: u32,
    /// Highest share of characters in lines that came before in the text.
    #[schemars(range(min = 0))]
    pub char_duplicates: f64,
    /// Most newlines a word, marks counted as words.
    #[schemars(range(min = 0))]
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

/// A published selection of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Set {
    /// NeMo Curator's cascade for English: `empty` and its 28 filters.
    English,
    /// NeMo Curator's cascade for other languages with spaces between words.
    NonEnglish,
    /// Gopher's quality rules as datatrove has them.
    GopherQuality,
    /// Gopher's repetition rules as datatrove has them.
    GopherRepetition,
    /// FineWeb's own rules.
    FineWeb,
    /// mC4's rule of three long lines.
    C4Paragraphs,
}
