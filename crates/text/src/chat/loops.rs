//! Jinja-compatible loops: iteration over the characters of a string has a known length, iteration over none is an
//! error.

use super::concat;
use super::scan::{is_word, outside};

/// Name of the function applied to the operand of every loop.
pub const LOOPED: &str = "_looped";

/// A template whose loops ask [`LOOPED`], and whose texts that are joined ask [`concat::TEXT`].
pub fn asking(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let (close, quoted) = match rest.as_bytes().get(1) {
            Some(b'#') => ("#}", false),
            Some(b'{') => ("}}", true),
            Some(b'%') => ("%}", true),
            _ => {
                out.push('{');
                rest = &rest[1..];
                continue;
            }
        };
        let Some(end) = end(&rest[2..], close, quoted).map(|end| end + 2) else { break };
        let tag = &rest[..end];
        let word = tag[2..].trim_start_matches(['-', '+']).trim_start();
        if close == "#}" {
            out.push_str(tag);
        } else if close == "%}" && is_word(word, "for") {
            out.push_str(&concat::asking(&looping(tag)));
        } else {
            out.push_str(&concat::asking(tag));
        }
        rest = &rest[end..];
        if close == "%}"
            && is_word(word, "raw")
            && let Some(after) = raw(rest)
        {
            out.push_str(&rest[..after]);
            rest = &rest[after..];
        }
    }
    out + rest
}

/// Offset after the closing delimiter of a tag, ignoring string contents if `quoted`.
fn end(text: &str, close: &str, quoted: bool) -> Option<usize> {
    if !quoted {
        return text.find(close).map(|at| at + close.len());
    }
    outside(text).find(|(at, _)| text[*at..].starts_with(close)).map(|(at, _)| at + close.len())
}

/// Offset after the end of raw text.
fn raw(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%").map(|at| from + at + 2) {
        if is_word(text[at..].trim_start_matches(['-', '+']).trim_start(), "endraw") {
            return text[at..].find("%}").map(|end| at + end + 2);
        }
        from = at;
    }
    None
}

/// Inserts the function call into the tag of a loop.
fn looping(tag: &str) -> String {
    let Some(start) = keyword(tag, 2, &["in"]).map(|at| at + 2) else { return tag.to_string() };
    let close = tag.len() - "%}".len();
    let close = tag[..close].strip_suffix(['-', '+']).map_or(close, str::len);
    let end = keyword(tag, start, &["if", "recursive"]).unwrap_or(close).min(close);
    let (before, over, after) = (&tag[..start], tag[start..end].trim(), &tag[end..]);
    if over.is_empty() {
        return tag.to_string();
    }
    // The extra parentheses keep a tuple a single argument.
    format!("{before} {LOOPED}(({over})) {after}")
}

/// Offset of the first of `words` in a tag from `from` on, outside strings and brackets.
fn keyword(tag: &str, from: usize, words: &[&str]) -> Option<usize> {
    let (mut depth, mut last) = (0usize, ' ');
    for (at, c) in outside(&tag[from..]) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let begins = !(last.is_alphanumeric() || last == '_' || last == '.');
        if depth == 0 && begins && words.iter().any(|word| is_word(&tag[from + at..], word)) {
            return Some(from + at);
        }
        last = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looped_over_is_asked_and_all_else_stays() {
        for (source, expected) in [
            ("{% for x in y %}a{% endfor %}", "{% for x in _looped((y)) %}a{% endfor %}"),
            ("{%- for a, b in c.items() -%}", "{%- for a, b in _looped((c.items())) -%}"),
            (
                "{% for x in y['in if'](1 if 2 else 3)[::-1] if x.in_for and y %}",
                "{% for x in _looped((y['in if'](1 if 2 else 3)[::-1])) if x.in_for and y %}",
            ),
            ("{% for x in 1, 2 recursive %}", "{% for x in _looped((1, 2)) recursive %}"),
            ("{% for x in '%}' %}", "{% for x in _looped(('%}')) %}"),
            ("{% for x in\n  y\n%}", "{% for x in _looped((y)) %}"),
        ] {
            assert_eq!(asking(source), expected);
        }
        for same in [
            "{# for x in y #}{{ '{% for x in y %}' }}{ {% if x in y %}{% endif %}",
            "{% raw %}{% for x in y %}{%- endraw %}",
            "{% for x in y",
            "{% forx in y %}{% for %}",
        ] {
            assert_eq!(asking(same), same);
        }
    }
}
