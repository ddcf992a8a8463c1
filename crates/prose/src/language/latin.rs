//! The built-in detector for Latin letters: whatlang's answer, computed in another way.
//!
//! whatlang compares the order of the 600 most frequent trigrams of a text with that of the 300 of each of 37 languages
//! (Cavnar and Trenkle 1994, N-gram-based text categorization), and its letters with their alphabets. It looks each
//! trigram of each language up among those of the text, and hashes every trigram that it reads. Here trigrams of ASCII
//! letters are counted in a table, and each trigram of the text is looked up once, which gives all languages that know it.
//! The ranks are whatlang's own: `oracle/language` asked it for them. Ties are broken as there, by the same sorts of the
//! same values, so that label and confidence are the same for every text.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::sync::LazyLock;

use whatlang::{Lang, Script};

use super::trigrams::{self, Counts, FIXED, Signs, symbol_of_ascii};

/// Trigrams of a language, and the distance of one that the text has not.
const PROFILE: u32 = 300;

static TABLES: LazyLock<Tables> = LazyLock::new(|| Tables::read(include_str!("latin.tsv")));

/// The language of a text most of whose letters are ASCII, and whatlang's confidence; `None` for other texts.
pub(super) fn detect(text: &str) -> Option<(Lang, f64)> {
    let ascii_letters = text.bytes().filter(u8::is_ascii_alphabetic).count();
    let others = text.bytes().filter(|byte| *byte >= 0xc0).count();
    // Whatever the others are, no script has more letters than Latin.
    if ascii_letters <= others {
        return None;
    }
    let (counts, signs) = if others == 0 {
        (trigrams::count(text.bytes().map(symbol_of_ascii), FIXED), Signs::default())
    } else {
        let lower = text.to_lowercase();
        let signs = Signs::of(&lower)?;
        (trigrams::count(lower.chars().map(|c| signs.symbol(c)), signs.len()), signs)
    };
    Some(TABLES.judge(&counts, &signs))
}

/// What is known of the languages, each at its place in `Script::Latin.langs()`.
struct Tables {
    /// Bits of the languages that have each letter.
    letters: BTreeMap<char, u64>,
    /// Languages and ranks of all trigrams, one trigram after the other.
    ranks: Vec<(u8, u16)>,
    /// Where those of the trigrams of fixed signs begin, by index.
    fixed: Vec<u32>,
    /// The others, ascending, and where theirs begin and end.
    others: Vec<([char; 3], (u32, u32))>,
}

impl Tables {
    /// Reads code, letters and trigrams by rank, a language a line.
    fn read(text: &str) -> Tables {
        let mut letters: BTreeMap<char, u64> = BTreeMap::new();
        let mut known: BTreeMap<[char; 3], Vec<(u8, u16)>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = line.split('\t');
            let (Some(code), Some(alphabet), Some(trigrams)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let place = Script::Latin.langs().iter().position(|lang| lang.code() == code);
            let Some(place) = place else { continue };
            alphabet.chars().for_each(|c| *letters.entry(c).or_default() |= 1 << place);
            let signs: Vec<char> = trigrams.chars().collect();
            for (rank, trigram) in signs.as_chunks::<3>().0.iter().enumerate() {
                known.entry(*trigram).or_default().push((place as u8, rank as u16));
            }
        }
        let mut tables = Tables { letters, ranks: Vec::new(), fixed: Vec::new(), others: Vec::new() };
        let mut by_index: Vec<Vec<(u8, u16)>> = vec![Vec::new(); FIXED.pow(3)];
        for (trigram, ranks) in known {
            if trigram.iter().all(char::is_ascii) {
                by_index[trigrams::index(trigram.map(|c| symbol_of_ascii(c as u8)))] = ranks;
            } else {
                let begin = tables.ranks.len() as u32;
                tables.ranks.extend(ranks);
                tables.others.push((trigram, (begin, tables.ranks.len() as u32)));
            }
        }
        for ranks in by_index {
            tables.fixed.push(tables.ranks.len() as u32);
            tables.ranks.extend(ranks);
        }
        tables.fixed.push(tables.ranks.len() as u32);
        tables
    }

    /// The languages that know a trigram, and its rank in each.
    fn ranks(&self, trigram: [u16; 3], signs: &Signs) -> &[(u8, u16)] {
        let (begin, end) = if trigram.iter().all(|symbol| usize::from(*symbol) < FIXED) {
            let index = trigrams::index(trigram);
            (self.fixed[index], self.fixed[index + 1])
        } else {
            let chars = trigram.map(|symbol| signs.char(symbol));
            let found = self.others.binary_search_by(|(other, _)| other.cmp(&chars));
            found.map_or((0, 0), |at| self.others[at].1)
        };
        &self.ranks[begin as usize..end as usize]
    }

    fn judge(&self, counts: &Counts, signs: &Signs) -> (Lang, f64) {
        let langs = Script::Latin.langs();
        let mut by_letters: Vec<(Lang, usize)> =
            langs.iter().copied().zip(self.letter_scores(counts, signs)).collect();
        by_letters.sort_unstable_by_key(|(_, score)| Reverse(*score));
        let top = counts.most_frequent();
        let distances = self.distances(&top, signs);
        let farthest = top.len() as u32 * PROFILE;
        let letters_weight = (-(counts.letters() as f64 / 300.0) + 2.0 / 3.0).clamp(1.0 / 3.0, 2.0 / 3.0);
        let mut scores: Vec<(Lang, f64)> = by_letters
            .into_iter()
            .map(|(lang, score)| {
                let place = langs.iter().position(|other| *other == lang).unwrap_or(0);
                let by_letters = score as f64 / counts.letters() as f64;
                let by_trigrams = f64::from(farthest - distances[place]) / f64::from(farthest);
                (lang, by_letters * letters_weight + by_trigrams * (1.0 - letters_weight))
            })
            .collect();
        scores.sort_unstable_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Less));
        (scores[0].0, confidence(scores[0].1, scores[1].1, top.len()))
    }

    /// Letters of each language's alphabet less all others, not below 0.
    fn letter_scores(&self, counts: &Counts, signs: &Signs) -> Vec<usize> {
        let mut found = vec![0; Script::Latin.langs().len()];
        for (symbol, count) in counts.by_symbol() {
            let mut bits = self.letters.get(&signs.char(symbol)).copied().unwrap_or(0);
            while bits != 0 {
                found[bits.trailing_zeros() as usize] += count;
                bits &= bits - 1;
            }
        }
        found.into_iter().map(|found| (2 * found).saturating_sub(counts.letters())).collect()
    }

    /// How far the order of the text's trigrams is from that of each language.
    fn distances(&self, top: &[[u16; 3]], signs: &Signs) -> Vec<u32> {
        let mut sums = vec![(0, 0); Script::Latin.langs().len()];
        for (place, trigram) in top.iter().enumerate() {
            for &(lang, rank) in self.ranks(*trigram, signs) {
                let (distance, known) = &mut sums[usize::from(lang)];
                *distance += (place as u32).abs_diff(u32::from(rank));
                *known += 1;
            }
        }
        let few = PROFILE.saturating_sub(top.len() as u32);
        let whole = |(distance, known): (u32, u32)| distance + (PROFILE - known) * PROFILE - few * PROFILE;
        sums.into_iter().map(|sum| whole(sum).min(PROFILE * PROFILE)).collect()
    }
}

/// How sure the best of two scores is, by the number of trigrams.
fn confidence(best: f64, second: f64, count: usize) -> f64 {
    if best == 0.0 {
        return 0.0;
    }
    if second == 0.0 {
        return best;
    }
    let sure = (3.0 / count as f64) + 0.015;
    let rate = (best - second) / second;
    if rate > sure { 1.0 } else { rate / sure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_has_its_letters_and_trigrams() {
        let langs = Script::Latin.langs();
        for (place, lang) in langs.iter().enumerate() {
            let mut ranks: Vec<u16> =
                TABLES.ranks.iter().filter(|(other, _)| usize::from(*other) == place).map(|r| r.1).collect();
            ranks.sort_unstable();
            assert!(ranks.iter().copied().eq(0..PROFILE as u16), "{lang}");
            let letters = TABLES.letters.values().filter(|bits| *bits >> place & 1 == 1).count();
            assert!((20..120).contains(&letters), "{lang}: {letters}");
        }
    }
}
