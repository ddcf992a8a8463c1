//! URLs by Curator's pattern: `https?://`, followed by valid URL characters or percent-escapes.

use memchr::memmem;

/// Byte ranges of the URLs in `text`.
pub(crate) fn find_urls(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    std::iter::from_fn(move || {
        while let Some(skip) = memmem::find(&bytes[from..], b"://") {
            let colon = from + skip;
            from = colon + 3;
            let Some(start) = scheme_before(&bytes[..colon]) else { continue };
            let end = url_end(bytes, colon + 3);
            if end > colon + 3 {
                from = end;
                return Some((start, end));
            }
        }
        None
    })
}

fn scheme_before(bytes: &[u8]) -> Option<usize> {
    ["https", "http"].iter().find(|s| bytes.ends_with(s.as_bytes())).map(|s| bytes.len() - s.len())
}

/// End of the run of URL characters that begins at `at`.
fn url_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match bytes.get(at) {
            Some(b'%') if is_escape(&bytes[at..]) => at += 3,
            Some(&b) if is_url_byte(b) => at += 1,
            _ => return at,
        }
    }
}

fn is_escape(bytes: &[u8]) -> bool {
    matches!(bytes, [b'%', a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit())
}

fn is_url_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"$-_@.&+/:=?#~!*(),".contains(&b)
}

/// Facts for the URL filters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UrlFacts {
    /// Number of characters in URLs.
    pub(crate) chars: u32,
    /// True if a URL contains "porn".
    pub(crate) porn: bool,
}

impl UrlFacts {
    pub(crate) fn of(text: &str) -> UrlFacts {
        let mut facts = UrlFacts::default();
        for (start, end) in find_urls(text) {
            facts.chars += (end - start) as u32;
            facts.porn |= memmem::find(&text.as_bytes()[start..end], b"porn").is_some();
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_end_where_the_pattern_ends() {
        let found = |text: &'static str| find_urls(text).map(|(a, b)| &text[a..b]).collect::<Vec<_>>();
        assert_eq!(found("see <a href=\"https://x.org/a?b=1#c\">x</a>"), ["https://x.org/a?b=1#c"]);
        assert_eq!(
            found("http://a.b/%20c%zz xhttps://d,http:// ftp://e"),
            ["http://a.b/%20c", "https://d,http://"]
        );
        assert_eq!(found("http://"), Vec::<&str>::new());
    }
}
