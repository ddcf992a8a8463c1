//! Secrets inside addresses: a user name with a password, and a query, where object stores put signatures
//! (`X-Amz-Signature=`, `sig=`, tokens).
//!
//! The location of an input is printed and written next to the results, so it must not contain any. Products reject
//! such addresses with [`in_address`] and display typed text through [`redacted`].

use std::borrow::Cow;

/// Replacement for a secret.
const HIDDEN: &str = "***";

/// Parts of an address that may be secret, as byte offsets from the end of its `://`: user and password, and query
/// with fragment.
struct AddressSpans {
    /// Start of the host, after the `@` if there is one.
    host: usize,
    /// Start of the query or the fragment.
    query: Option<usize>,
    end: usize,
}

/// Finds the parts of the address whose host, or user, begins at the start of `text`.
fn parts(text: &str) -> AddressSpans {
    let ends = |c: char| c.is_whitespace() || c.is_control() || "\"'`<>".contains(c);
    let end = text.find(ends).unwrap_or(text.len());
    let address = &text[..end];
    let authority = address.find(['/', '?', '#']).unwrap_or(end);
    let host = address[..authority].rfind('@').map_or(0, |at| at + 1);
    AddressSpans { host, query: address.find(['?', '#']), end }
}

/// Names the part of an address that may be secret; `None` if there is none.
pub fn in_address(location: &str) -> Option<&'static str> {
    let (_, rest) = location.split_once("://")?;
    // The whole text is one address, even if it contains a space.
    match parts(rest) {
        AddressSpans { host, .. } if host > 0 => Some("a user or a password"),
        AddressSpans { query: Some(_), .. } => Some("a query"),
        AddressSpans { end, .. } if rest[end..].contains(['?', '@']) => Some("a query"),
        _ => None,
    }
}

/// Returns a text with the secrets of all its addresses hidden.
pub fn redacted(text: &str) -> Cow<'_, str> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("://") {
        let (before, address) = rest.split_at(at + "://".len());
        let AddressSpans { host, query, end } = parts(address);
        out.push_str(before);
        if host > 0 {
            out.push_str(HIDDEN);
            out.push('@');
        }
        let shown = query.unwrap_or(end);
        out.push_str(&address[host.min(shown)..shown]);
        if let Some(query) = query {
            out.push_str(&address[query..=query]);
            out.push_str(HIDDEN);
        }
        rest = &address[end..];
    }
    if out.is_empty() {
        return Cow::Borrowed(text);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_what_is_secret() {
        for (written, secret, shown) in [
            ("https://host/a.jsonl", None, "https://host/a.jsonl"),
            ("data/a?b@c.jsonl", None, "data/a?b@c.jsonl"),
            ("https://ann:pw@host/a@b", Some("a user or a password"), "https://***@host/a@b"),
            ("web=s3://key@bucket/", Some("a user or a password"), "web=s3://***@bucket/"),
            ("https://host/a?X-Amz-Signature=ab/c@d", Some("a query"), "https://host/a?***"),
            ("https://host?sig=1#token", Some("a query"), "https://host?***"),
            ("https://host/a#token", Some("a query"), "https://host/a#***"),
            ("https://a:b@c@host/x?y", Some("a user or a password"), "https://***@host/x?***"),
        ] {
            assert_eq!((in_address(written), &*redacted(written)), (secret, shown), "{written}");
        }
        let setting = r#"input.paths=["a=https://u:p@h/x?sig=1", "b=https://h/y"]"#;
        assert_eq!(redacted(setting), r#"input.paths=["a=https://***@h/x?***", "b=https://h/y"]"#);
    }
}
