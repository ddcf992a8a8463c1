//! Characters and words of a template tag outside of its strings.

/// Characters outside string literals, with their offsets.
pub fn outside(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut quote, mut escaped) = (None, false);
    text.char_indices().filter(move |(_, c)| match quote {
        Some(_) if escaped => {
            escaped = false;
            false
        }
        Some(open) => {
            escaped = *c == '\\';
            if *c == open {
                quote = None;
            }
            false
        }
        None if ['"', '\''].contains(c) => {
            quote = Some(*c);
            false
        }
        None => true,
    })
}

pub fn is_word(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}
