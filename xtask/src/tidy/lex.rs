//! A hand-written Rust lexer: just enough to separate code from strings and comments. It does not know the grammar.

/// The kind of a token. The rules look at identifiers and punctuation; numbers and lifetimes do not matter to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or a keyword.
    Word,
    /// A string or character literal of any kind, with its quotes.
    Text,
    /// A number or a lifetime.
    Other,
    /// One punctuation character: `->` is two tokens.
    Mark,
    /// A comment, including its slashes.
    Comment,
}

/// A token and the line it begins on, counted from 1.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    pub line: usize,
}

impl Token<'_> {
    /// True if this is the identifier, keyword or punctuation `text`.
    pub fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Mark) && self.text == text
    }
}

/// All tokens of a file, including comments. Never fails: invalid input becomes punctuation tokens.
pub fn lex(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = text[at..].chars().next() {
        let (kind, bytes) = next(&text[at..], first);
        let token = &text[at..at + bytes];
        if !first.is_whitespace() {
            tokens.push(Token { kind, text: token, line });
        }
        line += token.bytes().filter(|&byte| byte == b'\n').count();
        at += bytes;
    }
    tokens
}

/// Kind and length in bytes of the token at the beginning of `rest`.
fn next(rest: &str, first: char) -> (Kind, usize) {
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if let Some(bytes) = string(rest) {
        return (Kind::Text, bytes);
    }
    let word = |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    match first {
        '\'' => quote(rest),
        'b' if rest.starts_with("b'") => (Kind::Text, 1 + quote(&rest[1..]).1),
        'r' if rest.starts_with("r#") && word(&rest[2..]) > 0 => (Kind::Word, 2 + word(&rest[2..])),
        _ if first.is_alphabetic() || first == '_' => (Kind::Word, word(rest)),
        _ if first.is_ascii_digit() => (Kind::Other, word(rest)),
        _ => (Kind::Mark, first.len_utf8()),
    }
}

/// Length of a block comment, which may be nested.
fn block_comment(rest: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        let step = if tail.starts_with(b"/*") { 1 } else { -i32::from(tail.starts_with(b"*/")) };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length of a string literal with its prefix, if `rest` begins with one.
fn string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|tail| {
            let tail = if prefix.ends_with('r') { tail.trim_start_matches('#') } else { tail };
            tail.starts_with('"')
        })
    })?;
    if prefix.ends_with('r') {
        let hashes = rest[prefix.len()..].find('"')?;
        let body = prefix.len() + hashes + 1;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len()));
    }
    Some(escaped(rest, prefix.len() + 1, b'"'))
}

/// End of a literal whose body starts at `at`: after the first unescaped `close`.
fn escaped(rest: &str, mut at: usize, close: u8) -> usize {
    let bytes = rest.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == close => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A character literal or a lifetime.
fn quote(rest: &str) -> (Kind, usize) {
    let mut chars = rest[1..].chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => (Kind::Text, escaped(rest, 1, b'\'')),
        (Some(c), Some('\'')) => (Kind::Text, 2 + c.len_utf8()),
        _ => {
            let name = rest[1..].find(|c: char| !(c.is_alphanumeric() || c == '_'));
            (Kind::Other, name.map_or(rest.len(), |bytes| bytes + 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_comments_and_lifetimes_are_not_code() {
        let cases = [
            (r##"f(r#"a " unwrap("#, b'"', '\'', "\"x")"##, "f ( , , , )"),
            ("a /* x /* y */ z */ b // c\nd", "a b d"),
            ("fn f<'a>(x: &'a str) -> r#type {}", "fn f < > ( x : & str ) - > r#type { }"),
            ("br#\"fn\"# c\"fn\" b\"fn\" 1.5e3 0xff_u8 'é' 'é", "."),
            ("x.0.unwrap() r\"\\\" end", "x . . unwrap ( ) end"),
        ];
        for (text, expected) in cases {
            let code: Vec<&str> = lex(text)
                .iter()
                .filter(|token| matches!(token.kind, Kind::Word | Kind::Mark))
                .map(|token| token.text)
                .collect();
            assert_eq!(code.join(" "), expected, "{text}");
        }
    }

    #[test]
    fn lines_count_through_multi_line_tokens() {
        let tokens = lex("a \"1\n2\" /* 3\n */ b\nc");
        let lines: Vec<usize> = tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 1, 2, 3, 4]);
    }

    #[test]
    fn broken_text_ends() {
        for text in ["\"", "r#\"", "/* /*", "'", "'\\", "b\"\\", "\u{7f}\u{e9}"] {
            lex(text);
        }
    }
}
