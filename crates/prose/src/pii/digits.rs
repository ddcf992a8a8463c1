//! Groups of digits and the separators between them, from which numbers are assembled.
//!
//! Numbers occur next to other numbers: a card before its expiry month, two phone numbers in a row, an item number
//! before an account. Therefore no detector takes the longest run of digits for one number. Each tries complete
//! groups, continues after valid ones, and otherwise at the next group.

/// A run of digits without separators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Byte offset of the first digit.
    pub(super) start: usize,
    /// Byte offset after the last digit.
    pub(super) end: usize,
}

impl Group {
    /// Number of digits.
    pub(super) fn len(self) -> usize {
        self.end - self.start
    }
}

/// All groups of a text, in order.
pub(super) fn groups(text: &str) -> Vec<Group> {
    let bytes = text.as_bytes();
    let (mut groups, mut at) = (Vec::new(), 0);
    while let Some(first) = bytes[at..].iter().position(u8::is_ascii_digit) {
        let start = at + first;
        let len = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
        at = start + len;
        groups.push(Group { start, end: at });
    }
    groups
}

/// Kind of separator between two groups that may belong to one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// A punctuation mark without spaces, `(` for a bracket: `555-2368`, `(0)20`.
    Tight(char),
    /// A space, possibly with a bracket or a spaced dash: `(212) 555`.
    Loose,
    /// Anything else: two separate numbers.
    Nothing,
}

/// Classifies the text between two groups.
pub(super) fn join(between: &str) -> Join {
    const DASHES: [char; 4] = ['-', '\u{2010}', '\u{2011}', '\u{2013}'];
    let (mut spaces, mut marks, mut brackets, mut mark) = (0, 0, 0, '(');
    for (number, c) in between.chars().enumerate() {
        match c {
            _ if number == 4 => return Join::Nothing,
            ' ' | '\u{a0}' | '\u{202f}' => spaces += 1,
            '(' | ')' => brackets += 1,
            c if DASHES.contains(&c) || c == '.' || c == '/' => (marks, mark) = (marks + 1, c),
            _ => return Join::Nothing,
        }
    }
    match (spaces, marks, brackets) {
        (0, 1, _) | (0, 0, 1..) => Join::Tight(mark),
        (1, 0, _) => Join::Loose,
        (2, 1, 0) if between.starts_with(' ') && between.ends_with(' ') && DASHES.contains(&mark) => {
            Join::Loose
        }
        _ => Join::Nothing,
    }
}

/// Returns true for a single space or hyphen, as in numbers printed in groups.
pub(super) fn is_single(between: &str) -> bool {
    matches!(between, " " | "-" | "\u{a0}")
}
