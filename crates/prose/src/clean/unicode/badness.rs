//! Mojibake detection: character sequences that practically never occur in text, following ftfy's heuristic (Speer
//! 2021, version 6), and runs of characters that read as UTF-8 decoded in a one-byte encoding.

use super::classes::*;
use regex::Regex;

/// The compiled detectors.
#[derive(Clone, Debug)]
pub(super) struct Detectors {
    bad: Regex,
    /// Roles of the characters below U+2200, one bit set per role.
    roles: Vec<u8>,
}

const FIRST_OF_2: u8 = 1;
const FIRST_OF_3: u8 = 2;
const FIRST_OF_4: u8 = 4;
const CONTINUATION: u8 = 8;
const STRICT: u8 = 16;

impl Detectors {
    pub(super) fn new() -> Detectors {
        let bad = match Regex::new(&pattern()) {
            Ok(bad) => bad,
            Err(error) => panic!("pattern of mojibake: {error}"),
        };
        let mut roles = vec![0u8; 0x2200];
        for (role, body) in [
            (FIRST_OF_2, UTF8_FIRST_OF_2),
            (FIRST_OF_3, UTF8_FIRST_OF_3),
            (FIRST_OF_4, UTF8_FIRST_OF_4),
            (CONTINUATION, UTF8_CONTINUATION),
            (STRICT, UTF8_CONTINUATION_STRICT),
        ] {
            for c in members(body) {
                roles[c as usize] |= role;
            }
        }
        Detectors { bad, roles }
    }

    /// Returns true if `text` contains an implausible sequence.
    pub(super) fn is_bad(&self, text: &str) -> bool {
        self.bad.is_match(text)
    }

    fn role(&self, c: char) -> u8 {
        self.roles.get(c as usize).copied().unwrap_or(0)
    }

    /// Next run at or after `from` that reads as UTF-8 sequences and does not directly follow a continuation
    /// character.
    pub(super) fn next_run(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let mut before = text[..from].chars().next_back();
        for (offset, c) in text[from..].char_indices() {
            let start = from + offset;
            if self.role(c) & (FIRST_OF_2 | FIRST_OF_3 | FIRST_OF_4) != 0
                && before.is_none_or(|b| self.role(b) & STRICT == 0)
            {
                let mut end = start;
                while let Some(next) = self.sequence(text, end) {
                    end = next;
                }
                if end > start {
                    return Some((start, end));
                }
            }
            before = Some(c);
        }
        None
    }

    /// End of one sequence that begins at `at`.
    fn sequence(&self, text: &str, at: usize) -> Option<usize> {
        let first = self.role(text[at..].chars().next()?);
        let mut rest = text[at..].char_indices().skip(1).map(|(i, c)| (at + i + c.len_utf8(), c));
        let mut ends = [None; 3];
        for end in &mut ends {
            match rest.next() {
                Some((next, c)) if self.role(c) & CONTINUATION != 0 => *end = Some(next),
                _ => break,
            }
        }
        [(FIRST_OF_2, ends[0]), (FIRST_OF_3, ends[1]), (FIRST_OF_4, ends[2])]
            .into_iter()
            .find_map(|(role, end)| end.filter(|_| first & role != 0))
    }
}

/// Characters of a class body: single ones and ranges.
fn members(body: &str) -> Vec<char> {
    let chars: Vec<char> = body.chars().collect();
    let mut list = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        if i + 2 < chars.len() && chars[i + 1] == '-' {
            list.extend(chars[i]..=chars[i + 2]);
            i += 3;
        } else {
            list.push(chars[i]);
            i += 1;
        }
    }
    list
}

/// Character class for a letter used in the rules below.
fn class(letter: char) -> &'static str {
    match letter {
        'B' => BAD,
        'l' => LOWER_ACCENTED,
        'U' => UPPER_ACCENTED,
        'x' => BOX,
        's' => START_PUNCTUATION,
        'e' => END_PUNCTUATION,
        '$' => CURRENCY,
        'n' => NUMERIC,
        'w' => LAW,
        'c' => LOWER_COMMON,
        'C' => UPPER_COMMON,
        'k' => KAOMOJI,
        '1' => C1,
        'm' => COMMON,
        other => panic!("no class {other}"),
    }
}

/// Python's `\w` and `\s`, which differ from the Unicode classes of the regex crate.
const WORD: &str = "=[\\p{L}\\p{N}_]";
const SPACE: &str = "=[\\s\\x1c-\\x1f]";

/// Unlikely sequences: each rule is a list of elements, either class letters or, beginning with `=`, a pattern.
const RULES: [&[&str]; 37] = [
    &["1"],
    &["BlUxse$nw", "B"],
    &["=[a-zA-Z]", "cC", "B"],
    &["B", "lUxse$nw"],
    &["lcxe$n", "U"],
    &["xe$n", "l"],
    &["lxe", "$"],
    &[SPACE, "U", "$"],
    &["Ux", "nw"],
    &["lUx$e", "s", "n"],
    &["lU$nxw", "e", "s"],
    &["$nx", "s"],
    &["=[a-z]", "U", "s$"],
    &["x", "k"],
    &["lU$nsew", "x"],
    &["x", "e"],
    &["lU", "se", WORD],
    &["=[Œœ][^A-Za-z]"],
    &["U", "=°"],
    &["=[ÂÃÎÐ]", "€œŠš¢£Ÿž\u{a0}\u{ad}®©°·»–—´+se"],
    &["=×[²³]"],
    &["=[ØÙ]", "ŸŠ®°µ»+m$Bns", "=[ØÙ]", "ŸŠ®°µ»+m$Bns"],
    &["=à[²µ¹¼½¾]"],
    &["=√[±∂†≠®™´≤≥¥µø]"],
    &["=≈[°¢]"],
    &["=‚Ä[ìîïòôúùû†°¢π]"],
    &["=‚[âó][àä°ê]"],
    &["=вЂ"],
    &["=[ВГРС]", "°µ+1Bse$", "=[ВГРС]"],
    &["=ГўВЂВ.[A-Za-z ]"],
    &["=Ã[\u{a0}¡]"],
    &["=[a-z][\\s\x1c-\x1f]?[ÃÂ] "],
    &["=(?m:^)[ÃÂ] "],
    &["a-z.,?!+e", "=Â", " +se"],
    &["=β€[™\u{a0}Ά\u{ad}®°]"],
    &["=[ΒΓΞΟ]", "°+1Bse$", "=[ΒΓΞΟ]"],
    &["=ā€"],
];

fn pattern() -> String {
    let rules: Vec<String> = RULES
        .iter()
        .map(|rule| {
            rule.iter()
                .map(|part| match part.strip_prefix('=') {
                    Some(pattern) => pattern.to_string(),
                    None => {
                        let (fixed, letters) = part.rsplit_once('+').unwrap_or(("", part));
                        format!("[{fixed}{}]", letters.chars().map(class).collect::<String>())
                    }
                })
                .collect::<String>()
        })
        .collect();
    rules.join("|")
}
