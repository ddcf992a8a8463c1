//! Python's behaviour where the files and figures of other tools depend on it: its random numbers, literals, printed
//! values and regular expressions.

pub mod literal;
pub mod pattern;
pub mod pcg;
pub mod printed;
pub mod random;

/// True for what Python's `str.isspace` calls white space.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's `str.strip`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Python's `str.split` without arguments.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}
