//! A lenient HTML tokenizer over the bytes of a page: tags, their attributes, and text spans.
//!
//! The tokenizer follows the HTML standard where that matters for real pages (raw text elements, comments, quotes in
//! attributes) and takes time linear in the page: every byte is examined once, whatever its value.

use memchr::{memchr, memchr2, memmem};

/// A token of a page. Spans are byte offsets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Text {
        start: usize,
        end: usize,
    },
    /// The name is verbatim; `attributes` is the text between name and `>`.
    Start {
        name: &'a [u8],
        attributes: &'a [u8],
        start: usize,
        end: usize,
    },
    End {
        name: &'a [u8],
        start: usize,
        end: usize,
    },
    /// Content of `script`, `style` and similar elements, which is not text.
    Raw {
        start: usize,
        end: usize,
    },
    Comment {
        start: usize,
        end: usize,
    },
}

/// Iterator over the tokens of a page.
pub(super) struct Scanner<'a> {
    page: &'a [u8],
    at: usize,
    /// Raw text element that was just opened.
    raw: Option<&'a [u8]>,
    plaintext: bool,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(page: &'a str) -> Scanner<'a> {
        Scanner { page: page.as_bytes(), at: 0, raw: None, plaintext: false }
    }

    /// Content of a raw text element up to its end tag, or else up to the end of the page.
    fn raw_text(&mut self, name: &[u8]) -> Token<'a> {
        let start = self.at;
        let mut from = start;
        while let Some(found) = memmem::find(&self.page[from..], b"</") {
            let at = from + found;
            let rest = &self.page[at + 2..];
            let ends =
                rest.get(name.len()).is_none_or(|b| matches!(b, b'>' | b'/') || b.is_ascii_whitespace());
            if rest.len() >= name.len() && rest[..name.len()].eq_ignore_ascii_case(name) && ends {
                self.at = at;
                return Token::Raw { start, end: at };
            }
            from = at + 2;
        }
        self.at = self.page.len();
        Token::Raw { start, end: self.at }
    }

    /// Scans a tag that starts at `at`; `None` if the page ends inside.
    fn tag(&mut self, at: usize, name_at: usize) -> Option<(&'a [u8], &'a [u8], usize)> {
        let page = self.page;
        let mut name_end = name_at;
        while !matches!(page.get(name_end)?, b'>' | b'/' | b' ' | b'\n' | b'\t' | b'\r' | b'\x0c') {
            name_end += 1;
        }
        let mut from = name_end;
        loop {
            // A quote is significant only after `=`; others are syntax errors that browsers ignore.
            let close = from + memchr(b'>', &page[from..])?;
            let Some(quote_at) = quoted_value(&page[from..close]) else {
                self.at = close + 1;
                debug_assert!(close >= at);
                return Some((&page[name_at..name_end], &page[name_end..close], close + 1));
            };
            let open = from + quote_at;
            from = open + 1 + memchr(page[open], &page[open + 1..])? + 1;
        }
    }
}

/// Position of the first quote that opens a value without being closed in `part`; closed ones are skipped.
fn quoted_value(part: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = memchr2(b'"', b'\'', &part[from..]) {
        let at = from + found;
        if part[..at].trim_ascii_end().last() != Some(&b'=') {
            from = at + 1;
            continue;
        }
        match memchr(part[at], &part[at + 1..]) {
            Some(close) => from = at + 1 + close + 1,
            None => return Some(at),
        }
    }
    None
}

impl<'a> Iterator for Scanner<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        if let Some(name) = self.raw.take() {
            if name.eq_ignore_ascii_case(b"plaintext") {
                self.plaintext = true;
            } else {
                return Some(self.raw_text(name));
            }
        }
        let (page, start) = (self.page, self.at);
        if start >= page.len() {
            return None;
        }
        let mut from = start;
        let lt = loop {
            let found = if self.plaintext { None } else { memchr(b'<', &page[from..]) };
            let Some(lt) = found.map(|f| from + f) else { break page.len() };
            match page.get(lt + 1) {
                Some(b) if b.is_ascii_alphabetic() || matches!(b, b'!' | b'?') => break lt,
                Some(b'/') if page.get(lt + 2).is_some_and(u8::is_ascii_alphabetic) => break lt,
                _ => from = lt + 1,
            }
        };
        if lt > start {
            self.at = lt;
            return Some(Token::Text { start, end: lt });
        }
        let rest_end = page.len();
        match page[lt + 1] {
            b'!' | b'?' => {
                let rest = &page[lt..];
                let end = if rest.starts_with(b"<!--") {
                    // `<!-->` is a complete comment.
                    memmem::find(&rest[2..], b"-->").map(|e| lt + 2 + e + 3)
                } else if rest.starts_with(b"<![CDATA[") {
                    memmem::find(rest, b"]]>").map(|e| lt + e + 3)
                } else {
                    memchr(b'>', rest).map(|e| lt + e + 1)
                };
                self.at = end.unwrap_or(rest_end);
                Some(Token::Comment { start: lt, end: self.at })
            }
            b'/' => {
                let Some((name, _, end)) = self.tag(lt, lt + 2) else {
                    self.at = rest_end;
                    return None;
                };
                Some(Token::End { name, start: lt, end })
            }
            _ => {
                let Some((name, attributes, end)) = self.tag(lt, lt + 1) else {
                    self.at = rest_end;
                    return None;
                };
                if is_raw(name) && !is_closed_drawing(name, attributes) {
                    self.raw = Some(name);
                }
                Some(Token::Start { name, attributes, start: lt, end })
            }
        }
    }
}

/// Matches `<title/>` and `<style/>`, which are empty elements in drawings. Elsewhere they would extend to the end of
/// the page, so pages use them only in drawings.
fn is_closed_drawing(name: &[u8], attributes: &[u8]) -> bool {
    attributes.ends_with(b"/") && (name.eq_ignore_ascii_case(b"title") || name.eq_ignore_ascii_case(b"style"))
}

/// Matches elements whose content is not markup.
fn is_raw(name: &[u8]) -> bool {
    let is = |n: &[u8]| name.eq_ignore_ascii_case(n);
    match name.len() {
        3 => is(b"xmp"),
        5 => is(b"style") || is(b"title"),
        6 => is(b"script") || is(b"iframe"),
        7 => is(b"noembed"),
        8 => is(b"textarea") || is(b"noframes"),
        9 => is(b"plaintext"),
        _ => false,
    }
}

/// Calls `with` for every attribute of a start tag: its verbatim name and its raw value without quotes.
pub(super) fn attributes<'a>(mut rest: &'a [u8], mut with: impl FnMut(&'a [u8], &'a [u8])) {
    let space = |b: &u8| b.is_ascii_whitespace() || *b == b'/';
    loop {
        let start = rest.iter().position(|b| !space(b)).unwrap_or(rest.len());
        rest = &rest[start..];
        if rest.is_empty() {
            return;
        }
        let end = rest.iter().skip(1).position(|b| space(b) || *b == b'=').map_or(rest.len(), |e| e + 1);
        let name = &rest[..end];
        let after = rest[end..].trim_ascii_start();
        let Some(value) = after.strip_prefix(b"=") else {
            with(name, b"");
            rest = &rest[end..];
            continue;
        };
        let value = value.trim_ascii_start();
        let (value, behind) = match value.first() {
            Some(&quote) if quote == b'"' || quote == b'\'' => {
                let close = memchr(quote, &value[1..]).map_or(value.len(), |c| c + 1);
                (&value[1..close], &value[(close + 1).min(value.len())..])
            }
            _ => value.split_at(value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len())),
        };
        with(name, value);
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(page: &str) -> Vec<String> {
        let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let one = |token| match token {
            Token::Text { start, end } => page[start..end].to_string(),
            Token::Start { name, attributes: raw, .. } => {
                let mut out = format!("+{}", show(name));
                attributes(raw, |n, v| out.push_str(&format!(" {}[{}]", show(n), show(v))));
                out
            }
            Token::End { name, .. } => format!("-{}", show(name)),
            Token::Raw { start, end } => format!("raw {}", &page[start..end]),
            Token::Comment { .. } => "!".to_string(),
        };
        Scanner::new(page).map(one).collect()
    }

    #[track_caller]
    fn check(page: &str, expected: &[&str]) {
        assert_eq!(tokens(page), expected, "for {page:?}");
    }

    #[test]
    fn pages_are_cut_into_tokens() {
        check("a<b>c</b >d", &["a", "+b", "c", "-b", "d"]);
        check("<a href='x>y' b = \"z\" c=d/e f>t", &["+a href[x>y] b[z] c[d/e] f[]", "t"]);
        check("<p title=it's>x", &["+p title[it's]", "x"]);
        check("<p \"odd>x", &["+p \"odd[]", "x"]);
        check("1 < 2 <3 </ <", &["1 < 2 <3 </ <"]);
        check("<!--a>b-->c<!-->d<!doctype html><?x?>e", &["!", "c", "!", "d", "!", "!", "e"]);
        check("<SCRIPT>a<b></p></script >x", &["+SCRIPT", "raw a<b></p>", "-script", "x"]);
        check(
            "<svg><title/></svg>x<title>a</title>",
            &["+svg", "+title", "-svg", "x", "+title", "raw a", "-title"],
        );
        check("<style>p{}", &["+style", "raw p{}"]);
        check("<title>a &lt; b</title>", &["+title", "raw a &lt; b", "-title"]);
        check("x<p", &["x"]);
        check("x<p class='", &["x"]);
        check("<plaintext>a<b>", &["+plaintext", "a<b>"]);
        check("<!--", &["!"]);
    }

    #[test]
    fn endless_elements_are_searched_once() {
        let page = "<script>".repeat(100_000);
        assert!(tokens(&page).len() <= 3);
        let page = "<p a=\"".repeat(100_000);
        assert!(tokens(&page).len() <= 100_001);
        let page = "<title></titl".repeat(50_000);
        assert!(tokens(&page).len() <= 3);
    }
}
