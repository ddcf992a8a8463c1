//! Literal text that must not be read as markup (`<nowiki>`, code, formulas, character references): its punctuation
//! is replaced by private-use code points until all markup is resolved.

/// Represents the empty `<nowiki/>`, which separates the characters around it.
pub(super) const NOTHING: &str = "\u{10ff00}";
/// Offset between an ASCII character and its replacement.
const FROM: u32 = 0x10_ff00;

/// Protects the ASCII punctuation of `text` from later passes.
pub(super) fn protected(text: &str) -> String {
    let protect =
        |c: char| if c.is_ascii_punctuation() { char::from_u32(FROM + c as u32).unwrap_or(c) } else { c };
    text.chars().map(protect).collect()
}

/// Restores protected punctuation.
pub(super) fn restored(text: &str) -> String {
    let restore = |c: char| match c as u32 {
        FROM => None,
        code @ FROM..=0x10_ff7f => char::from_u32(code - FROM),
        _ => Some(c),
    };
    text.chars().filter_map(restore).collect()
}
