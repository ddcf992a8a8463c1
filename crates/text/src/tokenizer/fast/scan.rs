//! Expressions of known pre-tokenizers, each as a function that finds the end of the word at a position.
//!
//! All of them cover every character, so words are contiguous. The order of the branches is the order of the
//! expression's alternatives; [`super::super::pieces`] contains the expressions.

use super::classes::{Classes, LETTER, LOWER, NUMBER, NUMERIC, OTHER, SPACE, UPPER};

/// One expression, applied at one position.
pub(super) trait Scan: Copy {
    /// End of the word that begins at byte `at`, a character boundary inside `text`.
    fn end(self, text: &[u8], at: usize) -> usize;
}

/// Treats the whole text as one word.
#[derive(Clone, Copy)]
pub(super) struct Whole;

impl Scan for Whole {
    fn end(self, text: &[u8], _at: usize) -> usize {
        text.len()
    }
}

/// GPT-2's expression; with `DIGITS`, applied between numeric characters, each of which is a word.
#[derive(Clone, Copy)]
pub(super) struct Gpt2<const DIGITS: bool>(pub(super) &'static Classes);

impl<const DIGITS: bool> Gpt2<DIGITS> {
    /// Returns true if the expression sees the end of the text here: with `DIGITS`, numeric characters are cut out
    /// before.
    #[inline(always)]
    fn ends(self, class: u8) -> bool {
        DIGITS && class & NUMERIC != 0
    }

    /// Run of numbers or of other characters from `at`; with `DIGITS` it stops before a numeric character.
    #[inline(always)]
    fn run(self, text: &[u8], mut at: usize, classes: u8) -> usize {
        if !DIGITS {
            return self.0.run(text, at, classes);
        }
        while at < text.len() {
            let (class, bytes) = self.0.at(text, at);
            if class & classes == 0 || self.ends(class) {
                break;
            }
            at += bytes;
        }
        at
    }
}

impl<const DIGITS: bool> Scan for Gpt2<DIGITS> {
    #[inline(always)]
    fn end(self, text: &[u8], at: usize) -> usize {
        let (class, bytes) = self.0.at(text, at);
        let after = at + bytes;
        if self.ends(class) {
            return after;
        }
        if class & LETTER != 0 {
            return self.0.letters(text, after);
        }
        let first = text[at];
        if first == b' ' && after < text.len() {
            let (next, bytes) = self.0.at(text, after);
            if next & LETTER != 0 {
                return self.0.letters(text, after + bytes);
            }
            if next & SPACE == 0 && !self.ends(next) {
                return self.run(text, after + bytes, next & (NUMBER | OTHER));
            }
        }
        if class & SPACE != 0 {
            let end = self.0.run(text, after, SPACE);
            let followed = end < text.len() && !self.ends(self.0.at(text, end).0);
            return if followed { one_less(text, at, end) } else { end };
        }
        if first == b'\'' {
            let said = contraction(&text[after..]);
            if said > 0 {
                return after + said;
            }
        }
        self.run(text, after, class & (NUMBER | OTHER))
    }
}

/// Expression of the cl100k family: `most_digits` is 3 for Llama 3 and 1 for Qwen 2.
#[derive(Clone, Copy)]
pub(super) struct Cl100k {
    pub(super) classes: &'static Classes,
    pub(super) most_digits: usize,
}

impl Scan for Cl100k {
    #[inline(always)]
    fn end(self, text: &[u8], at: usize) -> usize {
        let (class, bytes) = self.classes.at(text, at);
        let after = at + bytes;
        if class & LETTER != 0 {
            return self.classes.letters(text, after);
        }
        let first = text[at];
        if first == b'\'' {
            let said = contraction_any_case(&text[after..]);
            if said > 0 {
                return after + said;
            }
        }
        if class & NUMBER != 0 {
            return numbers(self.classes, text, at, self.most_digits);
        }
        let (next, next_bytes) = if after < text.len() { self.classes.at(text, after) } else { (0, 0) };
        if next & LETTER != 0 && !is_line_end(first) {
            return self.classes.letters(text, after + next_bytes);
        }
        if class & OTHER != 0 || (first == b' ' && next & OTHER != 0) {
            return others(self.classes, text, after, is_line_end);
        }
        space(self.classes, text, at)
    }
}

/// Expression of the o200k family; Mistral's Tekken has no contractions and single digits.
#[derive(Clone, Copy)]
pub(super) struct O200k<const CONTRACTIONS: bool> {
    pub(super) classes: &'static Classes,
    pub(super) most_digits: usize,
}

impl<const CONTRACTIONS: bool> O200k<CONTRACTIONS> {
    /// `[upper]*[lower]+`, contraction: end of a match from `at`, if there is one.
    #[inline(always)]
    fn mixed(self, text: &[u8], at: usize) -> Option<usize> {
        let upper = self.classes.run(text, at, UPPER);
        let end = self.classes.run(text, upper, LOWER);
        if end > upper {
            return Some(self.contracted(text, end));
        }
        // Backtrack from the capitals to a character that may end a word.
        let mut end = upper;
        while end > at {
            let last = char_before(text, end);
            if self.classes.at(text, last).0 & LOWER != 0 {
                return Some(self.contracted(text, end));
            }
            end = last;
        }
        None
    }

    /// `[upper]+[lower]*`, contraction. Called only if [`Self::mixed`] found nothing.
    #[inline(always)]
    fn capitals(self, text: &[u8], at: usize) -> Option<usize> {
        let upper = self.classes.run(text, at, UPPER);
        (upper > at).then(|| self.contracted(text, self.classes.run(text, upper, LOWER)))
    }

    #[inline(always)]
    fn contracted(self, text: &[u8], end: usize) -> usize {
        if CONTRACTIONS && end < text.len() && text[end] == b'\'' {
            let said = contraction_any_case(&text[end + 1..]);
            return if said > 0 { end + 1 + said } else { end };
        }
        end
    }
}

impl<const CONTRACTIONS: bool> Scan for O200k<CONTRACTIONS> {
    #[inline(always)]
    fn end(self, text: &[u8], at: usize) -> usize {
        let (class, bytes) = self.classes.at(text, at);
        let (first, after) = (text[at], at + bytes);
        let (next, next_bytes) = if after < text.len() { self.classes.at(text, after) } else { (0, 0) };
        // An optional character before the word that is not a letter, number or line end.
        let before_word = class & (LETTER | NUMBER) == 0 && !is_line_end(first);
        let word = [(before_word, after, next), (true, at, class)];
        for (tried, from, class) in word {
            if tried
                && class & (UPPER | LOWER) != 0
                && let Some(end) = self.mixed(text, from)
            {
                return end;
            }
        }
        for (tried, from, class) in word {
            if tried
                && class & UPPER != 0
                && let Some(end) = self.capitals(text, from)
            {
                return end;
            }
        }
        if class & NUMBER != 0 {
            return numbers(self.classes, text, at, self.most_digits);
        }
        if class & OTHER != 0 {
            return others(self.classes, text, after, |byte| is_line_end(byte) || byte == b'/');
        }
        if first == b' ' && next & OTHER != 0 {
            return others(self.classes, text, after + next_bytes, |byte| is_line_end(byte) || byte == b'/');
        }
        space(self.classes, text, at)
    }
}

#[inline(always)]
fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// `\p{N}{1,most}`.
#[inline(always)]
fn numbers(classes: &Classes, text: &[u8], at: usize, most: usize) -> usize {
    let mut end = at;
    for _ in 0..most {
        if end >= text.len() {
            break;
        }
        let (class, bytes) = classes.at(text, end);
        if class & NUMBER == 0 {
            break;
        }
        end += bytes;
    }
    end
}

/// Remainder of ` ?[^\s\p{L}\p{N}]+[\r\n]*`.
#[inline(always)]
fn others(classes: &Classes, text: &[u8], at: usize, belongs: impl Fn(u8) -> bool) -> usize {
    let end = classes.run(text, at, OTHER);
    let lines = text[end..].iter().take_while(|&&byte| belongs(byte)).count();
    end + lines
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`.
#[inline(always)]
fn space(classes: &Classes, text: &[u8], at: usize) -> usize {
    let end = classes.run(text, at, SPACE);
    if let Some(last) = text[at..end].iter().rposition(|&byte| is_line_end(byte)) {
        return at + last + 1;
    }
    if end == text.len() { end } else { one_less(text, at, end) }
}

/// `\s+(?!\S)|\s+` if something follows: drops the last character, unless it is the only one.
#[inline(always)]
fn one_less(text: &[u8], at: usize, end: usize) -> usize {
    let last = char_before(text, end);
    if last > at { last } else { end }
}

/// Start of the character that ends at `end`.
#[inline(always)]
fn char_before(text: &[u8], end: usize) -> usize {
    let mut start = end - 1;
    while start > 0 && text[start] & 0xC0 == 0x80 {
        start -= 1;
    }
    start
}

/// Length of `s|t|re|ve|m|ll|d` at the start; zero if none matches.
#[inline(always)]
fn contraction(rest: &[u8]) -> usize {
    match rest {
        [b's' | b't' | b'm' | b'd', ..] => 1,
        [b'r' | b'v', b'e', ..] | [b'l', b'l', ..] => 2,
        _ => 0,
    }
}

/// Like [`contraction`], ignoring case; the long s (U+017F) is a case variant of s.
#[inline(always)]
fn contraction_any_case(rest: &[u8]) -> usize {
    match rest {
        [b's' | b't' | b'm' | b'd' | b'S' | b'T' | b'M' | b'D', ..] => 1,
        [b'r' | b'v' | b'R' | b'V', b'e' | b'E', ..] | [b'l' | b'L', b'l' | b'L', ..] => 2,
        [0xC5, 0xBF, ..] => 2,
        _ => 0,
    }
}
