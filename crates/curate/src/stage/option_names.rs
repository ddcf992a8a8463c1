//! Names of filters in reports: the option that configures them, so that a rule that drops too much can be found and
//! changed.
//!
//! A filter without its own option keeps its name (`empty`). If one option configures several filters, a suffix
//! distinguishes them: `repeating_top_ngrams.2`, `gopher.symbol_word_ratio.hashes`.

use std::borrow::Cow;

use fathom_prose::filter::{FilterOptions, Filters, Set};

/// Filters of `heuristics` whose options have different names.
const HEURISTICS: [(&str, &str); 17] = [
    ("too_long", "max_bytes"),
    ("gopher_dup_para_frac", "gopher.dup_para_frac"),
    ("gopher_dup_para_char_frac", "gopher.dup_para_char_frac"),
    ("gopher_dup_line_frac", "gopher.dup_line_frac"),
    ("gopher_dup_line_char_frac", "gopher.dup_line_char_frac"),
    ("gopher_word_count", "gopher.word_count"),
    ("gopher_mean_word_length", "gopher.mean_word_length"),
    ("gopher_hashes", "gopher.symbol_word_ratio.hashes"),
    ("gopher_ellipses", "gopher.symbol_word_ratio.ellipses"),
    ("gopher_bullets", "gopher.bullet_lines_ratio"),
    ("gopher_end_ellipses", "gopher.ellipsis_lines_ratio"),
    ("gopher_letters", "gopher.alpha_words_ratio"),
    ("gopher_stop_words", "gopher.stop_words"),
    ("fineweb_line_punct_ratio", "fineweb.line_punct"),
    ("fineweb_short_line_ratio", "fineweb.short_line"),
    ("fineweb_char_dup_ratio", "fineweb.char_duplicates"),
    ("fineweb_list_ratio", "fineweb.new_line"),
];

/// Filters of repeated n-grams: prefix and suffix around the length, and the option.
const NGRAMS: [(&str, &str, &str); 4] = [
    ("repeating_top_", "grams", "repeating_top_ngrams"),
    ("repeating_dup_", "gram", "repeating_dup_ngrams"),
    ("gopher_top_", "_gram", "gopher.top_ngrams"),
    ("gopher_duplicated_", "_n_grams", "gopher.dup_ngrams"),
];

/// Report name of a filter of `heuristics`.
pub(super) fn of_heuristics(filter: &str) -> Cow<'_, str> {
    let ngrams = NGRAMS.iter().find_map(|(start, end, option)| {
        let length = filter.strip_prefix(start)?.strip_suffix(end)?;
        Some(format!("{option}.{length}"))
    });
    match (ngrams, HEURISTICS.iter().find(|(name, _)| *name == filter)) {
        (Some(ngrams), _) => Cow::Owned(ngrams),
        (None, Some((_, option))) => Cow::Borrowed(option),
        (None, None) => Cow::Borrowed(filter),
    }
}

/// Replaces report names in `with` and `without` by the filters' own names.
pub(super) fn of_reports(mut options: FilterOptions) -> FilterOptions {
    let sets = vec![Set::English, Set::GopherRepetition, Set::GopherQuality, Set::FineWeb, Set::C4Paragraphs];
    let all = FilterOptions { sets, with: Vec::new(), without: Vec::new(), ..options.clone() };
    // Invalid options are reported where they are used.
    let known = Filters::new(&all).map(|filters| filters.names()).unwrap_or_default();
    let is_of = |filter: &str, written: &str| {
        let option = of_heuristics(filter);
        option.strip_prefix(written).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    for names in [&mut options.with, &mut options.without] {
        let own = |written: &String| -> Vec<String> {
            let meant: Vec<String> =
                known.iter().filter(|filter| is_of(filter, written)).map(|name| (*name).to_owned()).collect();
            if meant.is_empty() { vec![written.clone()] } else { meant }
        };
        *names = names.iter().flat_map(own).collect();
    }
    options
}

/// Report name of a rule of `c4`.
pub(super) fn of_c4(rule: &str) -> &str {
    match rule {
        "c4_too_few_sentences" => "min_sentences",
        rule => rule.strip_prefix("c4_").unwrap_or(rule),
    }
}

/// Report name of a filter of `code`.
pub(super) fn of_code(filter: &str) -> Cow<'_, str> {
    match filter.strip_prefix("extension_") {
        Some(rule) => Cow::Owned(format!("extensions.{rule}")),
        None if filter == "xml_header" => Cow::Borrowed("xml_header_chars"),
        None => Cow::Borrowed(filter),
    }
}

/// Report name of a filter of `tokens`.
pub(super) fn of_tokens(filter: &str) -> Cow<'_, str> {
    Cow::Borrowed(if filter == "tokenizer_fertility" { "fertility" } else { filter })
}

/// Report name of a rule of `quality`.
pub(super) fn of_quality(rule: &str) -> &str {
    match rule {
        "quality" => "min_score",
        "quality_pareto" => "pareto",
        rule => rule,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::option_docs;
    use crate::stage::filters::Heuristics;
    use crate::stage::kind::Maker;

    #[test]
    fn every_filter_has_the_name_of_an_option() {
        let options = option_docs::<<Heuristics as Maker>::Options>();
        let options: Vec<String> = options.into_iter().map(|option| option.name).collect();
        let sets = vec![
            Set::English,
            Set::NonEnglish,
            Set::GopherRepetition,
            Set::GopherQuality,
            Set::FineWeb,
            Set::C4Paragraphs,
        ];
        let all = FilterOptions { sets, ..FilterOptions::default() };
        let filters = Filters::new(&all).unwrap().names();
        assert!(filters.len() > 50, "{filters:?}");
        for filter in filters.into_iter().chain(["too_long"]).filter(|name| *name != "empty") {
            let name = of_heuristics(filter);
            let is_of = |option: &String| {
                name.strip_prefix(option.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            assert!(options.iter().any(is_of), "{filter}: {name} is no option: {options:?}");
        }
    }

    #[test]
    fn filters_are_left_out_by_the_name_in_the_report() {
        let options = |without: &[&str]| FilterOptions {
            sets: vec![Set::GopherQuality, Set::GopherRepetition],
            without: without.iter().map(|name| (*name).to_owned()).collect(),
            ..FilterOptions::default()
        };
        let names = |without| Filters::new(&of_reports(options(without))).unwrap().names();
        let all = names(&[]);
        assert!(all.contains(&"gopher_hashes") && all.contains(&"gopher_top_2_gram"), "{all:?}");
        assert_eq!(names(&["gopher.symbol_word_ratio.hashes"]), names(&["gopher_hashes"]));
        assert_eq!(names(&["gopher.symbol_word_ratio"]), names(&["gopher_hashes", "gopher_ellipses"]));
        assert_eq!(names(&["gopher.top_ngrams.2"]), names(&["gopher_top_2_gram"]));
        assert!(Filters::new(&of_reports(options(&["gopher.hash"]))).is_err());
    }
}
