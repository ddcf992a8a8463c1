//! Comparison of the fused pass with simple reference filters, and test cases of the published filters.

use fathom_prose::filter::{
    C4, C4Options, CodeFile, CodeFilters, CodeOptions, Filter, FilterOptions, Filters, GopherOptions,
    Scratch, Set, WordRule, is_space, strip,
};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

fn chars(s: &str) -> f64 {
    s.chars().count() as f64
}

fn words(text: &str) -> Vec<&str> {
    text.split(is_space).filter(|w| !w.is_empty()).collect()
}

fn lines(text: &str) -> Vec<&str> {
    text.split('\n').filter(|l| !strip(l).is_empty()).collect()
}

fn share(list: &[&str], keep: impl Fn(&str) -> bool) -> f64 {
    list.iter().filter(|s| keep(s)).count() as f64 / list.len() as f64
}

fn unique(list: &[&str]) -> f64 {
    list.iter().collect::<HashSet<_>>().len() as f64 / list.len() as f64
}

fn unique_chars(list: &[&str]) -> f64 {
    let all: f64 = list.iter().map(|s| chars(s)).sum();
    let some: f64 = list.iter().collect::<HashSet<_>>().into_iter().map(|s| chars(s)).sum();
    if all == 0.0 { 0.0 } else { some / all }
}

const MARKS: [&str; 8] = ["...", "[...]", "…", "(...)", "[…]", "-»", "read more..", "read more"];

fn top_ngram(text: &str, n: usize) -> f64 {
    let words = words(text);
    if words.len() < n {
        return 1.0;
    }
    let mut counts: HashMap<&[&str], usize> = HashMap::new();
    words.windows(n).for_each(|g| *counts.entry(g).or_default() += 1);
    let mut best: (&[&str], usize) = (&words[..n], 0);
    for gram in words.windows(n) {
        if counts[gram] > best.1 {
            best = (gram, counts[gram]);
        }
    }
    let without = text.replace(&best.0.join(" "), "");
    (chars(text) - chars(&without)) / chars(text)
}

fn dup_ngram(text: &str, n: usize) -> f64 {
    let words = words(text);
    if words.len() < n {
        return 1.0;
    }
    let mut seen = HashSet::new();
    let (mut total, mut overlap) = (0.0, 0usize);
    for gram in words.windows(n) {
        if !seen.insert(gram) {
            total += gram[overlap..].iter().map(|w| chars(w)).sum::<f64>();
            total += (n - overlap).min(n - 1) as f64;
            overlap = n;
        }
        overlap = overlap.saturating_sub(1);
    }
    total / chars(text)
}

/// Value of a Curator filter, computed separately in the simplest way.
fn reference(name: &str, text: &str) -> f64 {
    let n = chars(text);
    let of = |keep: &dyn Fn(char) -> bool| text.chars().filter(|&c| keep(c)).count() as f64 / n;
    let paragraphs: Vec<&str> = text.split("\n\n").collect();
    let (words, lines) = (words(text), lines(text));
    match name {
        "empty" => f64::from(u8::from(!words.is_empty())),
        "alpha_numeric" => 1.0 - of(&|c| c.is_ascii_alphanumeric() || "\n?!,.".contains(c)),
        "numbers_ratio" => of(&|c| c.is_ascii_digit()),
        "white_space" => of(&|c| "\t\n\r\u{8} ".contains(c)),
        "parentheses_ratio" => of(&|c| "{}⟨⟩[]()".contains(c)),
        "urls_ratio" => {
            let url =
                regex::Regex::new(r"https?://(?:[A-Za-z0-9$\-_@.&+/:=?#~]|[!*\(\),]|(?:%[0-9A-Fa-f]{2}))+")
                    .unwrap();
            url.find_iter(text).map(|m| chars(m.as_str())).sum::<f64>() / n
        }
        "symbol_to_word" => share(&words, |w| {
            let runs = w.split(|c| c != '#').filter(|r| !r.is_empty()).count() as f64;
            MARKS.contains(&w) || runs / chars(w) > 0.5
        }),
        "boilerplate_string_ratio" => {
            let lower: Vec<String> = paragraphs.iter().map(|p| p.to_ascii_lowercase()).collect();
            let policies = ["terms of use", "privacy policy", "cookie policy", "uses cookies", "use cookies"];
            if lower.iter().any(|p| p.contains("lorem ipsum")) {
                1.0
            } else {
                lower.iter().filter(|p| policies.iter().any(|x| p.contains(x))).count() as f64
                    / lower.len() as f64
            }
        }
        "repeated_lines" => unique(&lines),
        "repeated_paragraphs" => unique(&paragraphs),
        "repeated_lines_char" => unique_chars(&lines),
        "repeated_paragraphs_char" => unique_chars(&paragraphs),
        "word_count" => words.len() as f64,
        "punctuation" => share(&lines, |l| !strip(l).ends_with(['.', '?', '!', '"', '\''])),
        "words_without_alphabets" => share(&words, |w| w.chars().any(char::is_alphabetic)),
        "common_english_words" => {
            let common = ["the", "be", "to", "of", "and", "that", "have", "with"];
            words.iter().filter(|w| common.contains(w)).count() as f64
        }
        "mean_word_length" => words.iter().map(|w| chars(w)).sum::<f64>() / words.len() as f64,
        "max_word_length" => words.iter().map(|w| chars(w)).fold(0.0, f64::max),
        "ellipsis" => share(&lines, |l| MARKS.iter().any(|m| strip(l).to_ascii_lowercase().ends_with(m))),
        "bullet_ratio" => share(&lines, |l| strip(l).starts_with(['•', '‣', '⁃', '∙', '○', '●', '◦'])),
        name => {
            let number: String = name.chars().filter(char::is_ascii_digit).collect();
            let n = number.parse().unwrap();
            if name.contains("top") { top_ngram(text, n) } else { dup_ngram(text, n) }
        }
    }
}

/// Pieces of text that exercise every rule.
fn pieces() -> impl Strategy<Value = String> {
    let fixed = [
        "the",
        "of",
        "and",
        "a",
        "river",
        "stone",
        "Read more",
        "lorem ipsum",
        "terms of use",
        "uses cookies",
        "...",
        "…",
        "#",
        "##",
        "#a#",
        "é",
        "naïve",
        "你好",
        "Ⅷ",
        "•",
        "-",
        "1",
        "2024",
        "(x)",
        "⟨y⟩",
        "[...]",
        ".",
        "?",
        "\"",
        "http://a.b/c?d=%20",
        "https://porn.x,",
        "\u{a0}",
        "\u{1c}",
        "\u{2003}",
        "\u{8}",
        "\t",
        "-»",
        "’",
        "\r\n",
        "\u{85}",
    ];
    let gap = ["", " ", " ", " ", " ", "\n", "\n\n", "\n\n\n", " \n"];
    prop::collection::vec((0..fixed.len(), 0..gap.len()), 0..120).prop_map(move |list| {
        list.into_iter().map(|(word, space)| format!("{}{}", fixed[word], gap[space])).collect()
    })
}

/// A text with repeated parts, so that long n-grams repeat.
fn repetitive() -> impl Strategy<Value = String> {
    (pieces(), pieces(), 0usize..4).prop_map(|(a, b, times)| {
        let mut text = a.clone();
        for _ in 0..times {
            text = format!("{text} {a} {b}");
        }
        text
    })
}

fn compare(text: &str) {
    let filters = Filters::new(&FilterOptions::default()).unwrap();
    let (mut scratch, mut scores) = (Scratch::default(), Vec::new());
    let verdict = filters.scores(text, &mut scratch, &mut scores);
    assert_eq!(filters.check(text, &mut scratch), verdict);
    for score in &scores {
        let expected = reference(score.name, text);
        assert!(
            (score.value - expected).abs() < 1e-12,
            "{}: {} but {expected} in {text:?}",
            score.name,
            score.value
        );
    }
    let first = scores.iter().find(|s| !s.keep).map(|s| s.name);
    assert_eq!(verdict.err().map(|r| r.reason), first);
    assert!(scores.len() == 29 || first == Some("empty"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_fused_pass_equals_separate_filters(text in repetitive()) {
        compare(&text);
    }

    #[test]
    fn any_text_has_a_verdict(text in ".{0,300}") {
        let options = FilterOptions {
            sets: vec![Set::English, Set::GopherRepetition, Set::GopherQuality, Set::FineWeb, Set::C4Paragraphs],
            with: vec!["pornographic_urls".into(), "substring".into()],
            ..FilterOptions::default()
        };
        let filters = Filters::new(&options).unwrap();
        let mut scores = Vec::new();
        let mut scratch = Scratch::default();
        prop_assert_eq!(filters.scores(&text, &mut scratch, &mut scores), filters.check(&text, &mut scratch));
        prop_assert!(scores.iter().all(|s| s.value.is_finite()));
    }

    #[test]
    fn gopher_repetition_equals_its_definition(text in repetitive()) {
        let options = FilterOptions { sets: vec![Set::GopherRepetition], ..FilterOptions::default() };
        let filters = Filters::new(&options).unwrap();
        let mut scores = Vec::new();
        let _ = filters.scores(&text, &mut Scratch::default(), &mut scores);
        let n = chars(&text);
        let line = regex::Regex::new("\n+").unwrap();
        let lines: Vec<&str> = line.split(&text).collect();
        for score in &scores {
            if score.name == "gopher_dup_line_frac" {
                prop_assert!((score.value - (1.0 - unique(&lines))).abs() < 1e-12);
            }
            if score.name == "gopher_dup_line_char_frac" {
                let all: f64 = lines.iter().map(|s| chars(s)).sum();
                let expected = (all - all * unique_chars(&lines)) / n;
                prop_assert!((score.value - expected).abs() < 1e-9, "{} {}", score.value, expected);
            }
        }
    }
}

/// Applies one filter to texts: `expected[i]` tells if `texts[i]` is kept.
fn check(filter: &str, change: impl FnOnce(&mut FilterOptions), texts: &[&str], expected: &[bool]) {
    let mut options = FilterOptions { sets: vec![], with: vec![filter.into()], ..FilterOptions::default() };
    change(&mut options);
    let filters = Filters::new(&options).unwrap();
    let mut scratch = Scratch::default();
    let kept: Vec<bool> = texts.iter().map(|t| filters.check(t, &mut scratch).is_ok()).collect();
    assert_eq!(kept, expected, "{filter} of {texts:?}");
}

#[test]
fn published_cases() {
    let same = |_: &mut FilterOptions| {};
    check(
        "alpha_numeric",
        same,
        &["", "This is a test case.", "%$^%$^%$&^$()))))", "$aaa"],
        &[false, true, false, true],
    );
    check(
        "numbers_ratio",
        |o| o.numbers_ratio = 0.1,
        &["purely letters", "34134543", "$!@$@!$!@", "abcdefghi1"],
        &[true, false, true, true],
    );
    check("white_space", same, &["\t\n\r", "good", "50%\n\n\n", "123\u{8}"], &[false, true, false, true]);
    check(
        "parentheses_ratio",
        same,
        &["()", "(not good)", "this is completely absolutely fine", "123456789("],
        &[false, false, true, true],
    );
    check("max_word_length", |o| o.max_word_length = 4.0, &["tiny", "large"], &[true, false]);
    check(
        "word_count",
        |o| o.word_count = (2.0, 4.0),
        &["", "one", "two words", "$#@$ %$@$#@ !#@!", "a b c d e"],
        &[false, false, true, true, false],
    );
    check("repeated_lines", same, &["totally unique", "half.\nhalf."], &[true, false]);
    check("repeated_paragraphs", same, &["totally unique", "half.\n\nhalf."], &[true, false]);
    check(
        "repeating_dup_5gram",
        same,
        &["a b c d e a b c d e", "one two three four five six"],
        &[false, true],
    );
    check(
        "punctuation",
        |o| o.punctuation = 0.8,
        &["not good", "good.", "just\n barely\n fine\n ok\n yep."],
        &[false, true, true],
    );
    check(
        "ellipsis",
        |o| o.ellipsis = 0.8,
        &["not good...", "good.", "a...\n b...\n c...\n d...\n yep."],
        &[false, true, true],
    );
    check("common_english_words", same, &["uncommon", "the and", "the and and of to"], &[false, true, true]);
    check(
        "words_without_alphabets",
        same,
        &["totally fine", "good good good good !", "@"],
        &[true, true, false],
    );
    check(
        "pornographic_urls",
        same,
        &["no url", "see https://porn.example.com", "porn http://a.b"],
        &[true, false, true],
    );
    check(
        "word_count",
        |o| (o.word_count, o.words) = ((2.0, 5.0), WordRule::Unicode),
        &["", "你好。", "我喜欢学习中文。"],
        &[false, true, false],
    );
    check("substring", |o| o.substring.text = "test".into(), &["a test", "none"], &[true, false]);
}

/// Values of Curator's filters for other languages.
fn values(words: WordRule, text: &str) -> Vec<(&'static str, f64)> {
    let filters = Filters::new(&FilterOptions { sets: vec![Set::NonEnglish], words, ..Default::default() });
    let mut scores = Vec::new();
    let _ = filters.unwrap().scores(text, &mut Scratch::default(), &mut scores);
    scores.iter().map(|score| (score.name, score.value)).collect()
}

#[test]
fn words_without_spaces_are_those_of_dictionaries() {
    let value = |words, name: &str, text: &str| {
        values(words, text).into_iter().find(|(score, _)| *score == name).unwrap().1
    };
    let count = |text: &str| value(WordRule::Auto, "word_count", text);
    assert_eq!(count("你好，世界。"), 4.0);
    assert_eq!(count("สวัสดีชาวโลก"), 3.0);
    assert_eq!(count("Hello, world! 你好，世界。"), 6.0);
    assert_eq!(value(WordRule::Spaces, "word_count", "你好，世界。"), 1.0);
    assert_eq!(value(WordRule::Auto, "mean_word_length", "你好，世界。"), 1.5);
    // 12 of 18 characters repeat: there are no spaces between the words, so none counts.
    let thrice = "你好，世界。".repeat(3);
    assert_eq!(value(WordRule::Auto, "repeating_dup_5gram", &thrice), 12.0 / 18.0);
    assert_eq!(value(WordRule::Auto, "repeating_top_2grams", &thrice), 9.0 / 18.0);
}

#[test]
fn ordinary_chinese_passes_the_filters_for_other_languages() {
    let options =
        FilterOptions { sets: vec![Set::NonEnglish], mean_word_length: (1.2, 4.0), ..Default::default() };
    let filters = Filters::new(&options).unwrap();
    let text = "委员会在一个雨夜开会，讨论了从城里通往乡村的道路。有人说，冬天的时候这些路根本不能走！\n\
                主席问大家：“我们明年春天能修好吗？”\n没有人回答他的问题，因为谁也不知道钱从哪里来。\n\
                后来他们决定先修桥，再修路，最后才修码头。";
    assert_eq!(filters.check(text, &mut Scratch::default()), Ok(()));
    // Lines without an end mark are still not sentences.
    let menu = text.replace(['。', '？', '”', '！'], "");
    assert_eq!(filters.check(&menu, &mut Scratch::default()).unwrap_err().reason, "punctuation");
}

#[test]
fn where_there_are_spaces_the_dictionary_changes_nothing() {
    let line = "The cat  sat on the mat, the cat sat — naïve café. ";
    for text in [line.repeat(5), line.repeat(4).replace(". ", "\n\n"), "Привет мир, привет мир. ".repeat(9)]
    {
        assert_eq!(values(WordRule::Dictionary, &text), values(WordRule::Spaces, &text), "{text}");
    }
}

#[test]
fn duplicates_of_two_words_as_published() {
    let mut options =
        FilterOptions { sets: vec![], with: vec!["repeating_dup_2gram".into()], ..Default::default() };
    options.repeating_dup_ngrams = vec![fathom_prose::filter::NGramLimit { n: 2, max: 0.2 }];
    let filters = Filters::new(&options).unwrap();
    let kept: Vec<bool> = ["a a b b a a b b", "totally fine", "a a a a this should be fine as well"]
        .iter()
        .map(|t| filters.check(t, &mut Scratch::default()).is_ok())
        .collect();
    assert_eq!(kept, [false, true, true]);
}

#[test]
fn sets_have_their_published_sizes_and_empty_text_is_named() {
    let names = |sets: Vec<Set>| {
        Filters::new(&FilterOptions { sets, ..FilterOptions::default() }).unwrap().names().len()
    };
    assert_eq!(names(vec![Set::English]), 29);
    assert_eq!(names(vec![Set::NonEnglish]), 26);
    let filters = Filters::new(&FilterOptions::default()).unwrap();
    for text in ["", " \n\t\u{a0}\u{1f}"] {
        let refusal = filters.check(text, &mut Scratch::default()).unwrap_err();
        assert_eq!(refusal.reason, Filter::Empty.name());
    }
}

#[test]
fn options_that_cannot_be_are_named() {
    let check = |options: FilterOptions, part: &str| {
        let message = Filters::new(&options).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    check(FilterOptions { with: vec!["word_cont".into()], ..Default::default() }, "`with` is word_cont");
    let twice = vec![fathom_prose::filter::NGramLimit { n: 2, max: 0.2 }; 2];
    check(FilterOptions { repeating_top_ngrams: twice, ..Default::default() }, "n = 2 twice");
    check(FilterOptions { alpha_numeric: f64::NAN, ..Default::default() }, "alpha_numeric");
    check(FilterOptions { word_count: (100.0, 2.0), ..Default::default() }, "`word_count` is [100, 2]");
    check(FilterOptions { punctuation: -0.5, ..Default::default() }, "`punctuation` is -0.5");
    check(FilterOptions { repeated_lines: 70.0, ..Default::default() }, "`repeated_lines` is 70");
    let gopher = GopherOptions { mean_word_length: (10.0, 3.0), ..Default::default() };
    check(FilterOptions { gopher, ..Default::default() }, "`gopher.mean_word_length` is [10, 3]");
    let code = CodeOptions { num_lines: (10.0, 5.0), ..Default::default() };
    assert!(CodeFilters::new(&code).unwrap_err().to_string().contains("`num_lines` is [10, 5]"));
    assert!(serde_json::from_str::<FilterOptions>("{\"alpha_numerik\": 1}").is_err());
    assert!(serde_json::from_str::<C4Options>("{}").is_ok());
}

#[test]
fn comments_are_counted_as_the_file_is_written() {
    let filters = CodeFilters::new(&CodeOptions { num_lines: (1.0, 100.0), ..Default::default() }).unwrap();
    let check = |path: &str, source: &str, reason: Option<&str>| {
        let file = CodeFile { path, language: None };
        assert_eq!(filters.check(source, file).err().map(|refusal| refusal.reason), reason, "{path}");
    };
    let python = "# adds two numbers\ndef add(first, second):\n    return first + second\n";
    check("src/a.py", python, None);
    check("src/a.py", "def add(first, second):\n    return first + second\n", Some("comment_ratio"));
    // The same characters are not a comment in Rust.
    check("src/a.rs", python, Some("comment_ratio"));
    check("src/a.rs", "// adds\nfn add(first: u32, second: u32) -> u32 { first + second }\n", None);
    check("src/a.rs", "// nothing but words, and no program", Some("comment_ratio"));
    check("notes.txt", "def add(first, second):\n    return first + second\n", None);
}

#[test]
fn white_space_of_html_counts_once() {
    let options = CodeOptions {
        comments: None,
        num_lines: (1.0, 1000.0),
        html_boilerplate: 0.2,
        html_min_chars: 20,
        ..Default::default()
    };
    let filters = CodeFilters::new(&options).unwrap();
    let share = |page: &str| {
        let mut scores = Vec::new();
        let _ = filters.scores(page, CodeFile::default(), &mut scores);
        scores.iter().find(|score| score.name == "html_boilerplate").unwrap().value
    };
    // Indentation is not text: six runs between tags, 4 + 2 characters of words.
    let indented = format!("<div>\n{0}<p>word</p>\n{0}<p>\n{0}<b>hi</b>\n{0}</p>\n</div>", " ".repeat(60));
    assert_eq!(share(&indented), 0.0);
    let text = format!("<p>{}</p>", "twelve chars".repeat(4));
    assert_eq!(share(&text), 48.0 / 55.0);
    assert_eq!(share(&text.replace(' ', "\n \t ")), 48.0 / 67.0);
    // White space counts where a browser preserves it.
    let verbatim = format!("<pre>{}</pre>", "twelve    chars".repeat(4));
    assert_eq!(share(&verbatim), 60.0 / 71.0);
}

#[test]
fn bad_words_may_lie_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.txt");
    std::fs::write(&path, "Ugly\n\n two words \n").unwrap();
    let options = C4Options { bad_words_file: Some(path.clone()), min_sentences: 1, ..C4Options::default() };
    let c4 = C4::new(&options).unwrap();
    assert_eq!(c4.clean("What an ugly thing.").unwrap_err().reason, "c4_bad_words");
    assert_eq!(c4.clean("These are Two words.").unwrap_err().reason, "c4_bad_words");
    assert_eq!(c4.clean("This is not one.").unwrap(), "This is not one.");
    std::fs::remove_file(&path).unwrap();
    assert!(C4::new(&options).unwrap_err().to_string().contains("bad.txt"));
}
