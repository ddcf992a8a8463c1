//! Rejects empty ranges: a filter with one would drop every text, which no recipe intends.

use super::options::{FilterOptions, NGramLimit};
use crate::Error;

fn refused(piece: &'static str, key: &str, found: String, advice: &str) -> Error {
    Error::Option { piece, key: key.to_string(), found, advice: advice.to_string() }
}

/// Rejects a minimum above the maximum.
pub(super) fn ordered(piece: &'static str, key: &str, (low, high): (f64, f64)) -> Result<(), Error> {
    if low <= high {
        return Ok(());
    }
    let found = format!("[{low}, {high}]");
    Err(refused(piece, key, found, "no text could pass; give the lowest value first, then the highest"))
}

/// Rejects a maximum below 0, since all measures are non-negative.
pub(super) fn highest(piece: &'static str, key: &str, value: f64) -> Result<(), Error> {
    if value >= 0.0 {
        return Ok(());
    }
    Err(refused(piece, key, value.to_string(), "no text could pass; give a number of 0 or more"))
}

/// Rejects a minimum share above 1.
pub(super) fn lowest_share(piece: &'static str, key: &str, value: f64) -> Result<(), Error> {
    if value <= 1.0 {
        return Ok(());
    }
    Err(refused(
        piece,
        key,
        value.to_string(),
        "no text could pass; it is a share, give a number from 0 to 1",
    ))
}

/// Checks all bounds of the text filters.
pub(super) fn check(o: &FilterOptions) -> Result<(), Error> {
    let (g, f) = (&o.gopher, &o.fineweb);
    for (key, pair) in [
        ("word_count", o.word_count),
        ("mean_word_length", o.mean_word_length),
        ("gopher.word_count", g.word_count),
        ("gopher.mean_word_length", g.mean_word_length),
    ] {
        ordered("filter", key, pair)?;
        highest("filter", key, pair.1)?;
    }
    for (key, low) in [
        ("repeated_lines", o.repeated_lines),
        ("repeated_paragraphs", o.repeated_paragraphs),
        ("repeated_lines_char", o.repeated_lines_char),
        ("repeated_paragraphs_char", o.repeated_paragraphs_char),
        ("words_without_alphabets", o.words_without_alphabets),
        ("gopher.alpha_words_ratio", g.alpha_words_ratio),
        ("fineweb.line_punct", f.line_punct),
    ] {
        lowest_share("filter", key, low)?;
    }
    for (key, high) in [
        ("alpha_numeric", o.alpha_numeric),
        ("symbol_to_word", o.symbol_to_word),
        ("numbers_ratio", o.numbers_ratio),
        ("urls_ratio", o.urls_ratio),
        ("white_space", o.white_space),
        ("parentheses_ratio", o.parentheses_ratio),
        ("boilerplate_string_ratio", o.boilerplate_string_ratio),
        ("punctuation", o.punctuation),
        ("max_word_length", o.max_word_length),
        ("ellipsis", o.ellipsis),
        ("bullet_ratio", o.bullet_ratio),
        ("gopher.symbol_word_ratio", g.symbol_word_ratio),
        ("gopher.bullet_lines_ratio", g.bullet_lines_ratio),
        ("gopher.ellipsis_lines_ratio", g.ellipsis_lines_ratio),
        ("gopher.dup_line_frac", g.dup_line_frac),
        ("gopher.dup_para_frac", g.dup_para_frac),
        ("gopher.dup_line_char_frac", g.dup_line_char_frac),
        ("gopher.dup_para_char_frac", g.dup_para_char_frac),
        ("fineweb.short_line", f.short_line),
        ("fineweb.char_duplicates", f.char_duplicates),
        ("fineweb.new_line", f.new_line),
    ] {
        highest("filter", key, high)?;
    }
    let grams: [(&str, &[NGramLimit]); 4] = [
        ("repeating_top_ngrams", &o.repeating_top_ngrams),
        ("repeating_dup_ngrams", &o.repeating_dup_ngrams),
        ("gopher.top_ngrams", &g.top_ngrams),
        ("gopher.dup_ngrams", &g.dup_ngrams),
    ];
    grams
        .iter()
        .try_for_each(|(key, list)| list.iter().try_for_each(|limit| highest("filter", key, limit.max)))
}
