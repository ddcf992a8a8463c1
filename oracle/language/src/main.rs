//! Writes what `whatlang` answers about the letters and the most frequent trigrams of each language in Latin script, one
//! language a line: code, letters, trigrams by rank, parted by tabs. Nothing is read but its answers: how far a text that
//! holds one trigram is from each language says which rank the trigram has there.

use std::collections::BTreeMap;

use whatlang::dev::{
    FilterList, Lang, LowercaseText, RawLangInfo, Script, alphabet_latin_calculate_scores, raw_detect,
};

/// Latin letters that no language has: what stands beside them makes no other trigram of a language.
const JUNK: [char; 4] = ['ʘ', 'ʬ', 'ʭ', 'ʢ'];
/// Signs that trigrams may hold beside letters.
const EXTRA: [char; 13] =
    ['·', 'ș', 'ț', 'ʻ', 'ʼ', '’', '‐', '\u{300}', '\u{301}', '\u{303}', '\u{307}', '\u{309}', '\u{323}'];
/// Trigrams of a language, and the distance of one that it has not.
const PROFILE: u32 = 300;
/// Trigrams asked for at once, to find out whether any of them is known.
const BATCH: usize = 100;

fn main() {
    let letters = letters();
    let mut all: Vec<char> = letters.values().flatten().copied().chain(EXTRA).collect();
    all.extend('a'..='z');
    all.extend('\u{df}'..='\u{17f}');
    all.push(' ');
    all.sort_unstable();
    all.dedup();
    all.retain(|c| c.to_lowercase().eq([*c]) && !JUNK.contains(c));
    eprintln!("{} characters", all.len());
    let mut ranks: BTreeMap<&str, BTreeMap<u32, [char; 3]>> = BTreeMap::new();
    let mut batch = Vec::new();
    for &a in &all {
        for &b in &all {
            for &c in &all {
                if b == ' ' && (a == ' ' || c == ' ') {
                    continue;
                }
                batch.push([a, b, c]);
                if batch.len() == BATCH {
                    ask(&batch, &mut ranks);
                    batch.clear();
                }
            }
        }
    }
    ask(&batch, &mut ranks);
    println!(
        "# What whatlang 0.18.0 (MIT licence, by Serhii Potapov) answers about languages in Latin letters: code, letters, trigrams by rank."
    );
    println!("# Made by oracle/language.");
    for lang in Script::Latin.langs() {
        let code = lang.code();
        let ranks = &ranks[code];
        assert!(ranks.keys().copied().eq(0..PROFILE), "{code} has {} ranks", ranks.len());
        let letters: String = letters[code].iter().collect();
        let trigrams: String = ranks.values().flatten().collect();
        println!("{code}\t{letters}\t{trigrams}");
    }
}

/// The letters of each language: a text of one letter has score 1 where it belongs.
fn letters() -> BTreeMap<&'static str, Vec<char>> {
    let mut letters: BTreeMap<&str, Vec<char>> = BTreeMap::new();
    for c in '\u{21}'..='\u{ffff}' {
        if !c.to_lowercase().eq([c]) {
            continue;
        }
        let text = LowercaseText::new(&c.to_string());
        for (lang, score) in alphabet_latin_calculate_scores(&text, &FilterList::default()).raw_scores {
            if score > 0 {
                letters.entry(lang.code()).or_default().push(c);
            }
        }
    }
    letters
}

/// Notes the ranks of those of `batch` that some language knows.
fn ask(batch: &[[char; 3]], ranks: &mut BTreeMap<&'static str, BTreeMap<u32, [char; 3]>>) {
    let text: Vec<String> = batch.iter().map(|trigram| word(*trigram, JUNK[0])).collect();
    let (count, distances) = distances(&text.join(" "));
    if distances.iter().all(|(_, distance)| *distance == count.min(PROFILE) * PROFILE) {
        return;
    }
    for &trigram in batch {
        // Twice, so that it is the most frequent one and its place in the text is 0.
        let (count, distances) =
            self::distances(&format!("{} {}", word(trigram, JUNK[0]), word(trigram, JUNK[2])));
        for (lang, distance) in distances.into_iter().filter(|(_, distance)| *distance != count * PROFILE) {
            let rank = distance + PROFILE - count * PROFILE;
            let other = ranks.entry(lang.code()).or_default().insert(rank, trigram);
            assert!(other.is_none(), "{}: {trigram:?} and {other:?} have rank {rank}", lang.code());
        }
    }
}

/// A text with this trigram, whose others hold `junk` or its neighbour in the list.
fn word([a, b, c]: [char; 3], junk: char) -> String {
    let other = JUNK[JUNK.iter().position(|j| *j == junk).unwrap_or(0) + 1];
    match (a, b, c) {
        (' ', b, ' ') => format!("{b} {junk}{other}"),
        (' ', b, c) => format!("{b}{c}{junk}"),
        (a, b, ' ') => format!("{junk}{a}{b}"),
        (a, ' ', c) => format!("{junk}{a} {c}{other}"),
        (a, b, c) => format!("{junk}{a}{b}{c}{other}"),
    }
}

/// How many trigrams a text has, and its distance from each language.
fn distances(text: &str) -> (u32, Vec<(Lang, u32)>) {
    match raw_detect(text).lang_info {
        Some(RawLangInfo::MultiScript(info)) => {
            let trigrams = info.trigram_raw_outcome;
            (trigrams.trigrams_count as u32, trigrams.raw_distances)
        }
        // No letter of the Latin script: nothing is known.
        other => panic!("{text}: {other:?}"),
    }
}
