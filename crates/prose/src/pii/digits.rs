//! Groups of digits and what stands between them: the steps in which numbers are read.
//!
//! Numbers stand next to other numbers: a card before the month in which it ends, two phones in a row, an item's number
//! before an account. So no detector takes the longest stretch of digits for one number. Each tries whole groups, goes on
//! behind those that are valid, and at the next group where none are.

/// Digits with nothing between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Byte offset of the first digit.
    pub(super) start: usize,
    /// Byte offset behind the last digit.
    pub(super) end: usize,
}

impl Group {
    /// How many digits.
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

/// What stands between two groups that may belong to one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// A mark without spaces, `(` for a bracket: `555-2368`, `(0)20`.
    Tight(char),
    /// A space, with a bracket or a dash between spaces at most: `(212) 555`.
    Loose,
    /// Anything else: two numbers.
    Nothing,
}

/// How the text between two groups joins them.
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

/// Whether one space or hyphen stands between two groups, as in numbers that are printed in groups.
pub(super) fn is_single(between: &str) -> bool {
    matches!(between, " " | "-" | "\u{a0}")
}
