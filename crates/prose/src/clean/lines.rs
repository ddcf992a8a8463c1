//! Line-wise modifiers (URLs, Markdown, unwanted lines), and shortening of newline runs.

use crate::filter::is_space;
use aho_corasick::{AhoCorasick, AhoCorasickKind};
use std::borrow::Cow;
use std::collections::HashSet;

/// Removes URLs: `https?://` or `www.` in any case, with the following non-space characters.
#[derive(Clone, Debug)]
pub struct UrlRemover {
    starts: AhoCorasick,
}

impl Default for UrlRemover {
    fn default() -> Self {
        UrlRemover::new()
    }
}

impl UrlRemover {
    /// Compiles the URL prefixes.
    pub fn new() -> UrlRemover {
        let starts = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::DFA))
            .build(["http://", "https://", "www."]);
        match starts {
            Ok(starts) => UrlRemover { starts },
            Err(error) => panic!("starts of URLs: {error}"),
        }
    }

    /// Removes the URLs from `text`.
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = String::new();
        let (mut done, mut from) = (0, 0);
        while let Some(found) = self.starts.find(&text[from..]) {
            let (start, body) = (from + found.start(), from + found.end());
            let len = text[body..].find(is_space).unwrap_or(text.len() - body);
            from = body + len;
            if len > 0 {
                out.push_str(&text[done..start]);
                done = from;
            }
        }
        finish(text, done, out)
    }
}

/// Returns `text` if nothing was cut, otherwise the output followed by the rest from `done`.
fn finish(text: &str, done: usize, mut out: String) -> Cow<'_, str> {
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

/// Removes lines that equal one of a set of texts.
#[derive(Clone, Debug, Default)]
pub struct LineRemover {
    lines: HashSet<String>,
}

impl LineRemover {
    /// Creates a remover of these lines, given without line ends.
    pub fn new(lines: impl IntoIterator<Item = String>) -> LineRemover {
        LineRemover { lines: lines.into_iter().collect() }
    }

    /// Returns true if there are no unwanted lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns true if `line` is unwanted.
    pub fn removes(&self, line: &str) -> bool {
        self.lines.contains(line)
    }

    /// Removes the unwanted lines from `text`.
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_empty() || !text.split('\n').any(|line| self.removes(line)) {
            return Cow::Borrowed(text);
        }
        let kept: Vec<&str> = text.split('\n').filter(|line| !self.removes(line)).collect();
        Cow::Owned(kept.join("\n"))
    }
}

/// Removes bold, italic and underline marks, and replaces links by their addresses.
pub fn remove_markdown(text: &str) -> Cow<'_, str> {
    if memchr::memchr3(b'*', b'_', b'[', text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        out.push_str(&markdown_line(line));
    }
    if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
}

/// Removes Markdown from one line.
pub(super) fn markdown_line(line: &str) -> Cow<'_, str> {
    if memchr::memchr3(b'*', b'_', b'[', line.as_bytes()).is_none() {
        return Cow::Borrowed(line);
    }
    let mut line = Cow::Borrowed(line);
    for mark in ["**", "*", "_"] {
        if let Some(new) = without_pairs(&line, mark) {
            line = Cow::Owned(new);
        }
    }
    if let Some(new) = links(&line) {
        line = Cow::Owned(new);
    }
    line
}

/// Removes pairs of `mark` from `line`; `None` if there is no pair.
fn without_pairs(line: &str, mark: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = line;
    let mut found = false;
    while let Some(open) = rest.find(mark) {
        let inside = &rest[open + mark.len()..];
        let Some(close) = inside.find(mark) else { break };
        out.push_str(&rest[..open]);
        out.push_str(&inside[..close]);
        rest = &inside[close + mark.len()..];
        found = true;
    }
    out.push_str(rest);
    found.then_some(out)
}

/// Replaces `[text](address)` by `address`.
fn links(line: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = line;
    let mut found = false;
    while let Some(open) = rest.find('[') {
        let Some(middle) = rest[open..].find("](").map(|at| open + at) else { break };
        let Some(close) = rest[middle + 2..].find(')').map(|at| middle + 2 + at) else { break };
        out.push_str(&rest[..open]);
        out.push_str(&rest[middle + 2..close]);
        rest = &rest[close + 1..];
        found = true;
    }
    out.push_str(rest);
    found.then_some(out)
}

/// Shortens runs of three or more `\n`, then of `\r\n`, to two.
pub fn normalize_newlines(text: &str) -> Cow<'_, str> {
    let text = shorten(Cow::Borrowed(text), "\n");
    shorten(text, "\r\n")
}

fn shorten<'a>(text: Cow<'a, str>, end: &str) -> Cow<'a, str> {
    let three = end.repeat(3);
    if !text.contains(&three) {
        return text;
    }
    let two = &three[..2 * end.len()];
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some(at) = rest.find(&three) {
        out.push_str(&rest[..at]);
        out.push_str(two);
        rest = &rest[at..];
        while let Some(shorter) = rest.strip_prefix(end) {
            rest = shorter;
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_go() {
        let check = |text: &str, expected: &str| assert_eq!(UrlRemover::new().apply(text), expected);
        check("This is a url: www.nvidia.com", "This is a url: ");
        check("HTTPS://x.y/z?a and http:// b", " and http:// b");
        check("no url here", "no url here");
    }

    #[test]
    fn markdown_goes() {
        let check = |text: &str, expected: &str| assert_eq!(remove_markdown(text), expected);
        check("This is a **bold** *italic* _underlined_ text", "This is a bold italic underlined text");
        check("A [link](https://a.b) and [no link]", "A https://a.b and [no link]");
        check("one * star\n**open", "one * star\nopen");
        check("2 * 3\n4 * 5", "2 * 3\n4 * 5");
    }

    #[test]
    fn newlines_and_lines() {
        assert_eq!(normalize_newlines("a\n\n\n\nb\n\nc\r\n\r\n\r\nd"), "a\n\nb\n\nc\r\n\r\nd");
        let remover = LineRemover::new(["Menu".to_string()]);
        assert_eq!(remover.apply("Menu\na\nMenu \nMenu"), "a\nMenu ");
    }
}
