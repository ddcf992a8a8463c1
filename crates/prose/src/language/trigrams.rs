//! Letters and trigrams of a text, counted. Whatever is no letter parts words, as one blank.

/// Signs with symbols of their own in every text: what parts words, `a` to `z`, and DEL, which whatlang takes for a letter.
pub(super) const FIXED: usize = 28;

/// Trigrams of a text that count: the most frequent ones.
const TOP: usize = 600;

/// Bits of a symbol in a trigram's key.
const BITS: u32 = 10;

/// The symbol of a byte below 128.
pub(super) fn symbol_of_ascii(byte: u8) -> u16 {
    SYMBOLS[usize::from(byte & 0x7f)]
}

const SYMBOLS: [u16; 128] = {
    let mut symbols = [0; 128];
    let mut letter = 0;
    while letter < 26 {
        symbols[b'a' as usize + letter] = letter as u16 + 1;
        symbols[b'A' as usize + letter] = letter as u16 + 1;
        letter += 1;
    }
    symbols[0x7f] = FIXED as u16 - 1;
    symbols
};

/// Place of a trigram of fixed signs in a table of all of them.
pub(super) fn index([a, b, c]: [u16; 3]) -> usize {
    (usize::from(a) * FIXED + usize::from(b)) * FIXED + usize::from(c)
}

/// The other signs of a text, ascending; each has a symbol behind the fixed ones, so that symbols are in the order of signs.
#[derive(Default)]
pub(super) struct Signs(Vec<char>);

impl Signs {
    /// Those of a text in small letters; `None` if they are too many.
    pub fn of(text: &str) -> Option<Signs> {
        let mut others: Vec<char> = text.chars().filter(|c| !c.is_ascii()).collect();
        others.sort_unstable();
        others.dedup();
        (FIXED + others.len() <= 1 << BITS).then_some(Signs(others))
    }

    /// Symbols of the text.
    pub fn len(&self) -> usize {
        FIXED + self.0.len()
    }

    /// The symbol of a sign of the text.
    pub fn symbol(&self, sign: char) -> u16 {
        match u8::try_from(sign) {
            Ok(byte) if byte < 128 => symbol_of_ascii(byte),
            _ => self.0.binary_search(&sign).map_or(0, |at| (FIXED + at) as u16),
        }
    }

    /// The sign of a symbol.
    pub fn char(&self, symbol: u16) -> char {
        match usize::from(symbol) {
            0 => ' ',
            27 => '\u{7f}',
            letter @ 1..FIXED => char::from(b'a' + letter as u8 - 1),
            other => self.0[other - FIXED],
        }
    }
}

/// How often letters and trigrams occur.
pub(super) struct Counts {
    /// By symbol.
    letters: Vec<u32>,
    /// Count, then key.
    trigrams: Vec<u64>,
}

/// Counts a text of so many symbols.
pub(super) fn count(text: impl Iterator<Item = u16>, symbols: usize) -> Counts {
    let mut letters = vec![0u32; symbols];
    let mut table = vec![0u32; FIXED.pow(3)];
    let (mut seen, mut others): (Vec<[u16; 3]>, Vec<u32>) = (Vec::with_capacity(1024), Vec::new());
    let (mut a, mut b) = (0, None);
    for c in text.chain([0]) {
        letters[usize::from(c)] += 1;
        let Some(middle) = b.replace(c) else { continue };
        let trigram = [std::mem::replace(&mut a, middle), middle, c];
        if middle == 0 && (trigram[0] == 0 || c == 0) {
            continue;
        }
        if trigram.iter().all(|symbol| usize::from(*symbol) < FIXED) {
            let count = &mut table[index(trigram)];
            if *count == 0 {
                seen.push(trigram);
            }
            *count += 1;
        } else {
            others.push(key(trigram));
        }
    }
    let pack = |count: u32, key: u32| u64::from(count) << 32 | u64::from(key);
    let mut trigrams: Vec<u64> = seen.iter().map(|t| pack(table[index(*t)], key(*t))).collect();
    others.sort_unstable();
    trigrams.extend(others.chunk_by(|a, b| a == b).map(|same| pack(same.len() as u32, same[0])));
    Counts { letters, trigrams }
}

fn key([a, b, c]: [u16; 3]) -> u32 {
    (u32::from(a) << (2 * BITS)) | (u32::from(b) << BITS) | u32::from(c)
}

impl Counts {
    /// Letters of the text.
    pub fn letters(&self) -> usize {
        self.by_symbol().map(|(_, count)| count).sum()
    }

    /// Letters that occur, and how often.
    pub fn by_symbol(&self) -> impl Iterator<Item = (u16, usize)> {
        let counted = self.letters.iter().enumerate().skip(1).filter(|(_, count)| **count > 0);
        counted.map(|(symbol, count)| (symbol as u16, *count as usize))
    }

    /// The most frequent trigrams, descending; of equally frequent ones the later in the alphabet first.
    pub fn most_frequent(&self) -> Vec<[u16; 3]> {
        let mut all = self.trigrams.clone();
        if all.len() > TOP {
            all.select_nth_unstable_by(TOP - 1, |a, b| b.cmp(a));
            all.truncate(TOP);
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        let symbol = |packed: u64, at: u32| (packed >> (at * BITS)) as u16 & ((1 << BITS) - 1);
        all.into_iter().map(|packed| [2, 1, 0].map(|at| symbol(packed, at))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trigrams_stay_within_words_and_the_blanks_between_two() {
        let check = |text: &str, expected: &[&str]| {
            let lower = text.to_lowercase();
            let signs = Signs::of(&lower).unwrap();
            let counts = count(lower.chars().map(|c| signs.symbol(c)), signs.len());
            let show = |trigram: [u16; 3]| trigram.iter().map(|s| signs.char(*s)).collect::<String>();
            assert_eq!(counts.most_frequent().into_iter().map(show).collect::<Vec<_>>(), expected, "{text}");
        };
        check("", &[]);
        check("1-, ", &[]);
        check("-a-", &[" a "]);
        check("Yes", &["yes", "es ", " ye"]);
        check("I, a  b", &[" i ", " b ", " a "]);
        check("I a", &["i a", " i ", " a "]);
        check("Éa éa\u{7f}", &[" éa", "éa\u{7f}", "éa ", "a\u{7f} ", "a é"]);
    }
}
