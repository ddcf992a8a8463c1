//! The compiled filters: selection, bounds, and evaluation from one shared scan.

use super::catalog::Filter;
use super::options::{FilterOptions, Position, SubstringOptions};
use super::phrases::PolicyPhrases;
use super::ranges;
use super::scratch::{Needs, Scratch, View};
use super::select::{bounds, check_lengths, refused, select};
use crate::Error;

/// Reason for rejecting a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal {
    /// Stable name of the filter.
    pub reason: &'static str,
    /// Measured value.
    pub value: f64,
}

/// Score of one filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Stable name of the filter.
    pub name: &'static str,
    /// Measured value.
    pub value: f64,
    /// True if the text passes this filter.
    pub keep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Rule {
    filter: Filter,
    low: f64,
    high: f64,
}

/// Filters compiled from options; shared by threads.
#[derive(Clone, Debug)]
pub struct Filters {
    rules: Vec<Rule>,
    needs: Needs,
    max_bytes: usize,
    phrases: PolicyPhrases,
    substring: SubstringOptions,
    zero_punct_passes: bool,
}

impl Filters {
    /// Compiles `options`.
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown filter name, an n-gram length outside 2..=16 or given twice, and bounds that
    /// are NaN or let nothing pass.
    pub fn new(options: &FilterOptions) -> Result<Filters, Error> {
        check_lengths("repeating_top_ngrams", &options.repeating_top_ngrams)?;
        check_lengths("repeating_dup_ngrams", &options.repeating_dup_ngrams)?;
        check_lengths("gopher.top_ngrams", &options.gopher.top_ngrams)?;
        check_lengths("gopher.dup_ngrams", &options.gopher.dup_ngrams)?;
        ranges::check(options)?;
        let mut rules = Vec::new();
        for filter in select(options)? {
            let (low, high) = bounds(filter, options);
            if low.is_nan() || high.is_nan() {
                return Err(refused(filter.name(), "not a number", "give a number"));
            }
            rules.push(Rule { filter, low, high });
        }
        let longest = |of: fn(Filter) -> Option<u8>| {
            rules.iter().filter_map(|r| of(r.filter)).max().unwrap_or(0) as usize
        };
        let needs = Needs {
            rule: options.words.with_sets(&options.sets),
            short: options.fineweb.short_line_length,
            ngrams: longest(|f| match f {
                Filter::TopNGram(n) | Filter::DupNGram(n) => Some(n),
                _ => None,
            }),
            token_ngrams: longest(|f| match f {
                Filter::GopherTop(n) | Filter::GopherDup(n) => Some(n),
                _ => None,
            }),
        };
        Ok(Filters {
            rules,
            needs,
            max_bytes: options.max_bytes.min(u32::MAX as usize),
            phrases: PolicyPhrases::new(),
            substring: options.substring.clone(),
            zero_punct_passes: options.fineweb.line_punct_exclude_zero,
        })
    }

    /// Names of the active filters, in the order of evaluation.
    pub fn names(&self) -> Vec<&'static str> {
        self.rules.iter().map(|r| r.filter.name()).collect()
    }

    /// Lowest and highest value that a filter accepts; `None` if the filter is not active.
    pub fn limits(&self, name: &str) -> Option<(f64, f64)> {
        self.rules.iter().find(|r| r.filter.name() == name).map(|r| (r.low, r.high))
    }

    /// Evaluates the filters in order up to the first refusal.
    pub fn check(&self, text: &str, scratch: &mut Scratch) -> Result<(), Refusal> {
        self.fits(text)?;
        let mut view = View::new(text, &self.needs, scratch);
        for rule in &self.rules {
            let value = self.measure(rule.filter, &mut view);
            if !self.keeps(rule, value) {
                return Err(Refusal { reason: rule.filter.name(), value });
            }
        }
        Ok(())
    }

    /// Evaluates all filters into `scores` (cleared first) and returns the same verdict as [`check`](Self::check). An
    /// empty text only has the score `empty`, a too long one has none.
    pub fn scores(&self, text: &str, scratch: &mut Scratch, scores: &mut Vec<Score>) -> Result<(), Refusal> {
        scores.clear();
        self.fits(text)?;
        let mut view = View::new(text, &self.needs, scratch);
        let mut verdict = Ok(());
        for rule in &self.rules {
            let value = self.measure(rule.filter, &mut view);
            let keep = self.keeps(rule, value);
            let name = rule.filter.name();
            scores.push(Score { name, value, keep });
            if !keep && verdict.is_ok() {
                verdict = Err(Refusal { reason: name, value });
                if rule.filter == Filter::Empty {
                    break;
                }
            }
        }
        verdict
    }

    fn fits(&self, text: &str) -> Result<(), Refusal> {
        if text.len() > self.max_bytes {
            return Err(Refusal { reason: "too_long", value: text.len() as f64 });
        }
        Ok(())
    }

    fn keeps(&self, rule: &Rule, value: f64) -> bool {
        let excused = rule.filter == Filter::FineWebPunctuation && self.zero_punct_passes && value == 0.0;
        excused || rule.low <= value && value <= rule.high
    }

    fn measure(&self, filter: Filter, view: &mut View) -> f64 {
        use Filter::*;
        match filter {
            Empty => f64::from(u8::from(view.text.chars().any(|c| !super::is_space(c)))),
            BoilerplateStringRatio => {
                let paragraphs = view.paragraphs().count;
                self.phrases.ratio(view.text, paragraphs)
            }
            Substring => {
                let wanted = self.substring.text.as_str();
                f64::from(u8::from(match self.substring.position {
                    Position::Prefix => view.text.starts_with(wanted),
                    Position::Suffix => view.text.ends_with(wanted),
                    Position::Any => view.text.contains(wanted),
                }))
            }
            PornographicUrls => f64::from(u8::from(view.urls().porn)),
            AlphaNumeric | NumbersRatio | UrlsRatio | WhiteSpace | ParenthesesRatio => of_chars(filter, view),
            TopNGram(_) | DupNGram(_) | GopherTop(_) | GopherDup(_) => of_ngrams(filter, view),
            RepeatedLines
            | RepeatedLinesChar
            | RepeatedParagraphs
            | RepeatedParagraphsChar
            | Punctuation
            | Ellipsis
            | BulletRatio => of_lines(filter, view),
            SymbolToWord
            | WordCount
            | WordsWithoutAlphabets
            | CommonEnglishWords
            | MeanWordLength
            | MaxWordLength => of_words(filter, view),
            FineWebPunctuation | FineWebShortLines | FineWebCharDuplicates | FineWebList | C4Paragraphs => {
                of_fineweb(filter, view)
            }
            _ => of_gopher(filter, view),
        }
    }
}

/// `a / b`, or 0 if `b` is 0 (such text has been rejected as `empty`).
fn ratio(a: impl Into<f64>, b: impl Into<f64>) -> f64 {
    let (a, b) = (a.into(), b.into());
    if b > 0.0 { a / b } else { 0.0 }
}

fn of_chars(filter: Filter, view: &mut View) -> f64 {
    let facts = view.chars();
    let count = match filter {
        Filter::AlphaNumeric => facts.chars - facts.alphanumeric,
        Filter::NumbersRatio => facts.digits,
        Filter::UrlsRatio => view.urls().chars,
        Filter::WhiteSpace => facts.white,
        _ => facts.brackets,
    };
    ratio(count, facts.chars)
}

fn of_words(filter: Filter, view: &mut View) -> f64 {
    let words = view.words();
    let count = words.len() as f64;
    match filter {
        Filter::SymbolToWord => ratio(words.symbols, count),
        Filter::WordsWithoutAlphabets => ratio(words.with_letter, count),
        Filter::CommonEnglishWords => f64::from(words.common),
        Filter::MeanWordLength => ratio(words.total_chars(), count),
        Filter::MaxWordLength => f64::from(words.longest),
        _ => count,
    }
}

fn of_lines(filter: Filter, view: &mut View) -> f64 {
    if matches!(filter, Filter::RepeatedParagraphs | Filter::RepeatedParagraphsChar) {
        let pieces = view.paragraphs();
        return match filter {
            Filter::RepeatedParagraphs => ratio(pieces.unique, pieces.count),
            _ => ratio(pieces.unique_chars as f64, pieces.chars as f64),
        };
    }
    let lines = view.lines();
    let count = lines.pieces.count;
    match filter {
        Filter::RepeatedLines => ratio(lines.pieces.unique, count),
        Filter::RepeatedLinesChar => ratio(lines.pieces.unique_chars as f64, lines.pieces.chars as f64),
        Filter::Punctuation if view.finds_words_by_dictionary() => ratio(lines.without_any_end_mark, count),
        Filter::Punctuation => ratio(lines.without_end_mark, count),
        Filter::Ellipsis => ratio(lines.cut_off, count),
        _ => ratio(lines.bullets, count),
    }
}

fn of_ngrams(filter: Filter, view: &mut View) -> f64 {
    let chars = f64::from(view.chars().chars);
    match filter {
        Filter::TopNGram(n) => view.top_ngram_chars(n as usize).map_or(1.0, |c| ratio(c as f64, chars)),
        Filter::DupNGram(n) if view.words().len() < n as usize => 1.0,
        Filter::DupNGram(n) => ratio(view.ngrams().dup_chars[n as usize] as f64, chars),
        Filter::GopherTop(n) => ratio(view.top_token_ngram_chars(n as usize) as f64, chars),
        Filter::GopherDup(n) => ratio(view.token_ngrams().dup_chars[n as usize] as f64, chars),
        other => panic!("{} is no n-gram filter", other.name()),
    }
}

fn of_fineweb(filter: Filter, view: &mut View) -> f64 {
    if filter == Filter::C4Paragraphs {
        return third_longest_line(view.text) as f64;
    }
    let lines = view.lines();
    match filter {
        Filter::FineWebPunctuation => ratio(lines.terminal, lines.pieces.count),
        Filter::FineWebShortLines => ratio(lines.short, lines.pieces.count),
        Filter::FineWebList => ratio(lines.newlines, view.tokens().len() as f64),
        _ => ratio(lines.pieces.repeated_chars() as f64, view.chars().chars - lines.newlines),
    }
}

fn of_gopher(filter: Filter, view: &mut View) -> f64 {
    let chars = view.chars().chars;
    match filter {
        Filter::GopherDupParagraphs => {
            let pieces = view.gopher_paragraphs();
            ratio(pieces.repeated(), pieces.count)
        }
        Filter::GopherDupParagraphChars => ratio(view.gopher_paragraphs().repeated_chars() as f64, chars),
        Filter::GopherDupLines => {
            let pieces = view.gopher_lines();
            ratio(pieces.repeated(), pieces.count)
        }
        Filter::GopherDupLineChars => ratio(view.gopher_lines().repeated_chars() as f64, chars),
        Filter::GopherBullets | Filter::GopherEndEllipses => {
            let marks = view.gopher_marks();
            let count = if filter == Filter::GopherBullets { marks.bullets } else { marks.end_ellipses };
            ratio(count, marks.lines)
        }
        Filter::GopherHashes | Filter::GopherEllipses => {
            let marks = view.gopher_marks();
            let count = if filter == Filter::GopherHashes { marks.hashes } else { marks.ellipses };
            ratio(count, view.tokens().len() as f64)
        }
        Filter::GopherMeanWordLength => {
            let tokens = view.tokens();
            ratio(tokens.real_chars as f64, tokens.real)
        }
        Filter::GopherLetters => {
            let tokens = view.tokens();
            ratio(tokens.with_letter, tokens.len() as f64)
        }
        Filter::GopherStopWords => f64::from(view.tokens().common.count_ones()),
        _ => f64::from(view.tokens().real),
    }
}

/// Characters of the third longest line; 0 if there are fewer than three.
fn third_longest_line(text: &str) -> usize {
    let mut longest = [0usize; 3];
    let mut lines = 0;
    for line in text.split('\n') {
        let chars = super::unicode::count_chars(line.as_bytes());
        lines += 1;
        if chars > longest[2] {
            longest[2] = chars;
            longest.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
    if lines < 3 { 0 } else { longest[2] }
}
