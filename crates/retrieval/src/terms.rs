//! Terms of a text, by which passages and queries are matched.
//!
//! A text is normalised (NFKC), lower-cased, and split into runs of letters and digits. In scripts without spaces each
//! pair of neighbouring characters is a term, and a lone character is one. Plurals of English words lose their ending
//! by Harman's S-stemmer (Harman 1991, "How effective is suffixing?", rules in table 1). There are no stop words:
//! frequent words weigh little by themselves.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfkc_quick};

/// Longest term, in bytes; longer ones are cut.
const LONGEST: usize = 64;

/// Calls `each` with each term of a text, in order.
pub fn terms(text: &str, mut each: impl FnMut(&str)) {
    let lowered = lowered(text);
    let mut pair = String::new();
    for run in lowered.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty()) {
        if run.is_ascii() {
            word(run, &mut each);
            continue;
        }
        let mut rest = run;
        while let Some(first) = rest.chars().next() {
            let same = is_unspaced(first);
            let end = rest.find(|c| is_unspaced(c) != same).unwrap_or(rest.len());
            let (part, after) = rest.split_at(end);
            if same {
                pairs(part, &mut pair, &mut each)
            } else {
                word(part, &mut each)
            }
            rest = after;
        }
    }
}

fn lowered(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        let any = text.bytes().any(|byte| byte.is_ascii_uppercase());
        return if any { text.to_ascii_lowercase().into() } else { text.into() };
    }
    match is_nfkc_quick(text.chars()) {
        IsNormalized::Yes => text.to_lowercase().into(),
        _ => text.nfkc().collect::<String>().to_lowercase().into(),
    }
}

/// Emits a word without its plural ending.
fn word(word: &str, each: &mut impl FnMut(&str)) {
    if word.len() <= 3 || !word.is_ascii() || !word.ends_with('s') {
        return each(cut(word));
    }
    let stem = &word[..word.len() - 1];
    if let Some(stem) = word.strip_suffix("ies").filter(|stem| !stem.ends_with(['e', 'a'])) {
        let mut singular = cut(stem).to_string();
        singular.push('y');
        each(&singular);
    } else if word.ends_with("es") {
        each(cut(if stem[..stem.len() - 1].ends_with(['a', 'e', 'o']) { word } else { stem }));
    } else {
        each(cut(if stem.ends_with(['u', 's']) { word } else { stem }));
    }
}

fn cut(word: &str) -> &str {
    &word[..word.floor_char_boundary(LONGEST)]
}

/// Emits the pairs of neighbouring characters.
fn pairs(run: &str, pair: &mut String, each: &mut impl FnMut(&str)) {
    if run.chars().nth(1).is_none() {
        return each(run);
    }
    for (first, second) in run.chars().zip(run.chars().skip(1)) {
        pair.clear();
        pair.extend([first, second]);
        each(pair);
    }
}

/// Returns whether a character belongs to a script that is written without spaces: Thai, Lao, Burmese, Khmer, kana, Han.
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3040..=0x30FF | 0x31F0..=0x31FF
        | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x2_0000..=0x3_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let mut found = Vec::new();
        terms(text, |term| found.push(term.to_string()));
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_text_is_split_into_lower_case_words_without_plural_endings() {
        check("The Queries of `serve.max_requests`", &["the", "query", "of", "serve", "max", "request"]);
        check(
            "ponies caresses boxes shoes trees bus class gas",
            &["pony", "caresse", "boxe", "shoes", "trees", "bus", "class", "gas"],
        );
        check("Ünïcode ﬁles, NAÏVE", &["ünïcode", "file", "naïve"]);
        check("", &[]);
    }

    #[test]
    fn scripts_without_spaces_give_pairs_of_characters() {
        check("東京都に3つ", &["東京", "京都", "都に", "3", "つ"]);
        check("GPU 速", &["gpu", "速"]);
    }

    #[test]
    fn a_long_run_is_cut_at_a_character() {
        let mut found = Vec::new();
        terms(&"é".repeat(100), |term| found.push(term.len()));
        assert_eq!(found, [64]);
    }
}
