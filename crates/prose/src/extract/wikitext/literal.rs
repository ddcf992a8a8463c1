//! Text that is no markup whatever it looks like (`<nowiki>`, code, formulas, character references): its signs are
//! replaced by code points of private use until all markup is resolved.

/// Stands for nothing: `<nowiki/>`, which keeps the signs around it apart.
pub(super) const NOTHING: &str = "\u{10ff00}";
/// The code point of an ASCII sign is this far from its own.
const FROM: u32 = 0x10_ff00;

/// `text` with its ASCII punctuation out of reach of the passes that follow.
pub(super) fn protected(text: &str) -> String {
    let protect =
        |c: char| if c.is_ascii_punctuation() { char::from_u32(FROM + c as u32).unwrap_or(c) } else { c };
    text.chars().map(protect).collect()
}

/// The text with its signs again.
pub(super) fn restored(text: &str) -> String {
    let restore = |c: char| match c as u32 {
        FROM => None,
        code @ FROM..=0x10_ff7f => char::from_u32(code - FROM),
        _ => Some(c),
    };
    text.chars().filter_map(restore).collect()
}
