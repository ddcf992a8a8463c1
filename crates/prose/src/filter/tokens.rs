//! Words of the Gopher and FineWeb filters, counted as in datatrove: punctuation marks are separate words.
//!
//! datatrove uses spaCy's rule-based tokenizer. This is a version of its main rules: punctuation around a word is
//! separate, `...` is one word, a hyphen, slash or colon between letters separates, a stop between letters (e.g.,
//! U.S.) and punctuation between digits (1,000.5) do not, `n't`, `'s`, `'re`, `'ve`, `'ll`, `'d`, `'m` are split off,
//! URLs and mail addresses stay whole. Its list of exceptions (abbreviations, emoticons) is not included.

use super::table::hash_at;
use super::unicode::{count_chars, is_space};

/// Tokens of a text with the counts for Gopher's quality rules.
#[derive(Default)]
pub(crate) struct Tokens {
    pub(crate) hashes: Vec<u64>,
    /// Number of characters in all preceding tokens; one more entry than tokens.
    pub(crate) chars: Vec<u32>,
    /// Number of tokens with a non-punctuation character.
    pub(crate) real: u32,
    /// Number of characters in those tokens.
    pub(crate) real_chars: u64,
    /// Number of tokens with a letter.
    pub(crate) with_letter: u32,
    /// Common English words that occur, one bit each.
    pub(crate) common: u8,
}

impl Tokens {
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Tokenizes the white-space separated `spans` of `text`.
    pub(crate) fn find(&mut self, text: &str, spans: &[(u32, u32)]) {
        self.hashes.clear();
        self.chars.clear();
        self.chars.push(0);
        (self.real, self.real_chars, self.with_letter, self.common) = (0, 0, 0, 0);
        for &(start, end) in spans {
            split(text, start as usize, end as usize, &mut |a, b| self.push(text, a, b));
        }
    }

    fn push(&mut self, text: &str, start: usize, end: usize) {
        let bytes = &text.as_bytes()[start..end];
        let ascii = bytes.is_ascii();
        let chars = if ascii { bytes.len() } else { count_chars(bytes) } as u32;
        self.hashes.push(hash_at(text.as_bytes(), start, end));
        self.chars.push(self.chars.last().copied().unwrap_or(0) + chars);
        let letter = if ascii {
            bytes.iter().any(u8::is_ascii_alphabetic)
        } else {
            text[start..end].chars().any(char::is_alphabetic)
        };
        let real = letter || text[start..end].chars().any(|c| !is_mark(c));
        self.with_letter += u32::from(letter);
        if real {
            self.real += 1;
            self.real_chars += u64::from(chars);
        }
        if letter
            && bytes.len() <= 4
            && let Some(i) = super::words::COMMON.iter().position(|w| w.as_bytes() == bytes)
        {
            self.common |= 1 << i;
        }
    }
}

/// Punctuation according to datatrove: ASCII punctuation, controls, sentence ends of all scripts, common wide
/// punctuation.
pub(crate) fn is_mark(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_punctuation() || c.is_ascii_control() && !matches!(c, '\t' | '\n');
    }
    MARKS.binary_search(&c).is_ok() || matches!(c, '\u{80}'..='\u{9f}') || super::lines::is_terminal(c)
}

const MARKS: [char; 30] = [
    '«', '´', '»', '–', '—', '’', '“', '”', '„', '…', '∶', '━', '►', '、', '〈', '〉', '《', '》', '「',
    '」', '【', '】', '％', '（', '）', '，', '１', '：', '；', '～',
];

fn split(text: &str, start: usize, end: usize, push: &mut impl FnMut(usize, usize)) {
    let word = &text[start..end];
    if word.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return push(start, end);
    }
    if is_address(word) {
        let tail = word.trim_end_matches(['.', ',', ')', '"', '\'', ';', ':', '!', '?']);
        if !tail.is_empty() {
            push(start, start + tail.len());
            return marks(text, start + tail.len(), end, push);
        }
    }
    let inner = word.trim_start_matches(is_edge);
    let from = end - inner.len();
    let mut to = from + inner.trim_end_matches(is_edge).len();
    marks(text, start, from, push);
    if text[to..end].starts_with('.') && is_abbreviation(&text[from..to]) {
        to += 1;
    }
    core(text, from, to, push);
    marks(text, to, end, push);
}

fn is_edge(c: char) -> bool {
    !c.is_alphanumeric() && !is_space(c)
}

fn is_address(word: &str) -> bool {
    word.contains("://") || word.starts_with("www.") || word.contains('@') && word.contains('.')
}

/// Matches letters separated by stops, such as `e.g` or `U.S`.
fn is_abbreviation(core: &str) -> bool {
    core.contains('.')
        && core.split('.').all(|part| part.chars().count() == 1 && part.chars().all(char::is_alphabetic))
}

/// Makes each punctuation mark a token; a run of stops is one.
fn marks(text: &str, start: usize, end: usize, push: &mut impl FnMut(usize, usize)) {
    let mut at = start;
    while at < end {
        let bytes = &text.as_bytes()[at..end];
        let stops = bytes.iter().take_while(|&&b| b == b'.').count();
        let len = if stops > 1 { stops } else { text[at..end].chars().next().map_or(1, char::len_utf8) };
        push(at, at + len);
        at += len;
    }
}

/// Splits the part of a word between its outer punctuation.
fn core(text: &str, start: usize, end: usize, push: &mut impl FnMut(usize, usize)) {
    let mut from = start;
    let mut before = ' ';
    let mut chars = text[start..end].char_indices().peekable();
    while let Some((offset, c)) = chars.next() {
        let at = start + offset;
        let after = chars.peek().map_or(' ', |&(_, next)| next);
        if c.is_alphanumeric() || is_joined(before, c, after) {
            before = c;
            continue;
        }
        if c == '\'' || c == '’' {
            before = c;
            continue;
        }
        clitic(text, from, at, push);
        push(at, at + c.len_utf8());
        from = at + c.len_utf8();
        before = c;
    }
    clitic(text, from, end, push);
}

fn is_joined(before: char, c: char, after: char) -> bool {
    match c {
        '.' => !(before.is_lowercase() && after.is_uppercase()),
        '_' | '&' | '@' | '#' | '$' | '%' | '+' => true,
        ',' => !(before.is_alphabetic() && after.is_alphabetic()),
        ':' | '/' | '=' | '<' | '>' => !after.is_alphabetic(),
        '-' | '–' | '—' | '~' => !(before.is_alphabetic() && after.is_alphabetic()),
        c if c.is_ascii() => false,
        _ => !is_mark(c),
    }
}

const CLITICS: [&str; 14] =
    ["n't", "n’t", "'s", "’s", "'re", "’re", "'ve", "’ve", "'ll", "’ll", "'d", "’d", "'m", "’m"];

/// Splits off an English ending after an apostrophe.
fn clitic(text: &str, from: usize, to: usize, push: &mut impl FnMut(usize, usize)) {
    if from == to {
        return;
    }
    let bytes = &text.as_bytes()[from..to];
    if memchr::memchr2(b'\'', 0xe2, bytes).is_some() {
        for ending in CLITICS {
            let Some(cut) = bytes.len().checked_sub(ending.len()).filter(|&cut| cut > 0) else { continue };
            if bytes[cut..].eq_ignore_ascii_case(ending.as_bytes()) {
                push(from, from + cut);
                return push(from + cut, to);
            }
        }
    }
    push(from, to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_split_as_the_rules_say() {
        let check = |text: &str, expected: &[&str]| {
            let mut found = Vec::new();
            for word in text.split_whitespace() {
                let start = word.as_ptr() as usize - text.as_ptr() as usize;
                split(text, start, start + word.len(), &mut |a, b| found.push(text[a..b].to_string()));
            }
            assert_eq!(found, expected, "{text}");
        };
        check("Hello, world!", &["Hello", ",", "world", "!"]);
        check("(well-known) don't", &["(", "well", "-", "known", ")", "do", "n't"]);
        check("costs 1,000.50 e.g. here...", &["costs", "1,000.50", "e.g.", "here", "..."]);
        check("\"It's.\" a/b", &["\"", "It", "'s", ".", "\"", "a", "/", "b"]);
        check("http://a.b/c?d, me@x.org.", &["http://a.b/c?d", ",", "me@x.org", "."]);
        check("naïve — 你好。", &["naïve", "—", "你好", "。"]);
        check("#### ***", &["#", "#", "#", "#", "*", "*", "*"]);
    }
}
