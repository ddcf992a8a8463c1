//! From options to rules: selection, order and bounds of the filters.

use super::catalog::{Filter, members};
use super::ngrams::LONGEST;
use super::options::{FilterOptions, NGramLimit, Set};
use crate::Error;

const ANY: f64 = f64::INFINITY;

/// Lowest and highest accepted value.
pub(super) fn bounds(filter: Filter, o: &FilterOptions) -> (f64, f64) {
    use Filter::*;
    let g = &o.gopher;
    match filter {
        Empty | Substring => (1.0, ANY),
        PornographicUrls => (-ANY, 0.0),
        AlphaNumeric => (-ANY, o.alpha_numeric),
        SymbolToWord => (-ANY, o.symbol_to_word),
        NumbersRatio => (-ANY, o.numbers_ratio),
        UrlsRatio => (-ANY, o.urls_ratio),
        WhiteSpace => (-ANY, o.white_space),
        ParenthesesRatio => (-ANY, o.parentheses_ratio),
        BoilerplateStringRatio => (-ANY, o.boilerplate_string_ratio),
        RepeatedLines => (o.repeated_lines, ANY),
        RepeatedParagraphs => (o.repeated_paragraphs, ANY),
        RepeatedLinesChar => (o.repeated_lines_char, ANY),
        RepeatedParagraphsChar => (o.repeated_paragraphs_char, ANY),
        WordCount => o.word_count,
        Punctuation => (-ANY, o.punctuation),
        WordsWithoutAlphabets => (o.words_without_alphabets, ANY),
        CommonEnglishWords => (o.common_english_words, ANY),
        MeanWordLength => o.mean_word_length,
        MaxWordLength => (-ANY, o.max_word_length),
        Ellipsis => (-ANY, o.ellipsis),
        TopNGram(n) => (-ANY, limit(&o.repeating_top_ngrams, n)),
        DupNGram(n) => (-ANY, limit(&o.repeating_dup_ngrams, n)),
        BulletRatio => (-ANY, o.bullet_ratio),
        GopherDupParagraphs => (-ANY, g.dup_para_frac),
        GopherDupParagraphChars => (-ANY, g.dup_para_char_frac),
        GopherDupLines => (-ANY, g.dup_line_frac),
        GopherDupLineChars => (-ANY, g.dup_line_char_frac),
        GopherTop(n) => (-ANY, limit(&g.top_ngrams, n)),
        GopherDup(n) => (-ANY, limit(&g.dup_ngrams, n)),
        GopherWordCount => g.word_count,
        GopherMeanWordLength => g.mean_word_length,
        GopherHashes | GopherEllipses => (-ANY, g.symbol_word_ratio),
        GopherBullets => (-ANY, g.bullet_lines_ratio),
        GopherEndEllipses => (-ANY, g.ellipsis_lines_ratio),
        GopherLetters => (g.alpha_words_ratio, ANY),
        GopherStopWords => (g.stop_words, ANY),
        FineWebPunctuation => (o.fineweb.line_punct, ANY),
        FineWebShortLines => (-ANY, o.fineweb.short_line),
        FineWebCharDuplicates => (-ANY, o.fineweb.char_duplicates),
        FineWebList => (-ANY, o.fineweb.new_line),
        C4Paragraphs => (o.c4_paragraphs, ANY),
    }
}

fn limit(list: &[NGramLimit], n: u8) -> f64 {
    list.iter().find(|l| l.n == n).map_or(ANY, |l| l.max)
}

/// Active filters: `empty` first, then in the order of the sets, then of `with`.
pub(super) fn select(o: &FilterOptions) -> Result<Vec<Filter>, Error> {
    let mut known = vec![Filter::Empty];
    for set in [Set::English, Set::GopherRepetition, Set::GopherQuality, Set::FineWeb, Set::C4Paragraphs] {
        known.extend(members(set, o));
    }
    known.extend([Filter::PornographicUrls, Filter::Substring]);
    let find = |key: &str, name: &String| {
        known.iter().copied().find(|f| f.name() == name).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|f| f.name()).collect();
            refused(key, name, &format!("known are {}", names.join(", ")))
        })
    };
    let mut chosen = vec![Filter::Empty];
    for &set in &o.sets {
        chosen.extend(members(set, o));
    }
    for name in &o.with {
        chosen.push(find("with", name)?);
    }
    let without: Vec<Filter> =
        o.without.iter().map(|name| find("without", name)).collect::<Result<_, _>>()?;
    let mut selected = Vec::new();
    for filter in chosen {
        let dropped = without.contains(&filter) && filter != Filter::Empty;
        if !dropped && !selected.contains(&filter) {
            selected.push(filter);
        }
    }
    Ok(selected)
}

/// Rejects lengths outside 2..=16 and lengths given twice.
pub(super) fn check_lengths(key: &str, limits: &[NGramLimit]) -> Result<(), Error> {
    for (i, limit) in limits.iter().enumerate() {
        if !(2..=LONGEST).contains(&(limit.n as usize)) {
            return Err(refused(key, &format!("n = {}", limit.n), "n-grams of 2 to 16 words are counted"));
        }
        if limits[..i].iter().any(|l| l.n == limit.n) {
            return Err(refused(key, &format!("n = {} twice", limit.n), "give each length once"));
        }
    }
    Ok(())
}

/// Error for an option of this module.
pub(super) fn refused(key: &str, found: &str, advice: &str) -> Error {
    Error::Option {
        piece: "filter",
        key: key.to_string(),
        found: found.to_string(),
        advice: advice.to_string(),
    }
}
