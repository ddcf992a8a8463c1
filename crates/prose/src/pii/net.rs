//! Mail addresses, URLs and IP addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use regex::Regex;
use unicode_normalization::char::is_combining_mark;

use super::Entity;
use super::detection::{Detection, compile, has_context, stands_alone};
use crate::filter::find_urls;

/// Compiled patterns.
#[derive(Clone, Debug)]
pub(super) struct Net {
    v4: Regex,
    v6: Regex,
    bare: Regex,
    /// Addresses of no host or of this one count, such as `::` and `0.0.0.0`.
    without_context: bool,
}

impl Net {
    pub(super) fn new(without_context: bool) -> Net {
        Net {
            without_context,
            v4: compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"),
            v6: compile(r"[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}"),
            bare: compile(r"(?i)\bwww\.[a-z0-9.-]+\.[a-z]{2,24}(?:/[^\s<>\x22']*)?"),
        }
    }

    pub(super) fn find(&self, text: &str, wanted: &impl Fn(Entity) -> bool, found: &mut Vec<Detection>) {
        if wanted(Entity::Email) {
            emails(text, found);
        }
        if wanted(Entity::Url) {
            urls(text, &self.bare, found);
        }
        if wanted(Entity::Ip) {
            self.addresses(text, found);
        }
    }

    fn addresses(&self, text: &str, found: &mut Vec<Detection>) {
        let entity = Entity::Ip;
        for m in self.v4.find_iter(text) {
            let (start, end) = (m.start(), m.end());
            let whole = stands_alone(text, start, end)
                && !text[..start].ends_with('.')
                && !text[end..]
                    .strip_prefix('.')
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            let version = has_context(text, start, 12, &["version", "release", "v", "section", "chapter"]);
            let counts = |ip: Ipv4Addr| self.without_context || !version && !ip.is_unspecified();
            if whole && m.as_str().parse::<Ipv4Addr>().is_ok_and(counts) {
                found.push(Detection { entity, start, end: end + prefix_len(&text[end..], 32) });
            }
        }
        if memchr::memchr(b':', text.as_bytes()).is_none() {
            return;
        }
        let mut done = 0;
        for m in self.v6.find_iter(text) {
            if m.start() >= done
                && let Some((start, end)) = v6(text, m.start(), self.without_context)
            {
                found.push(Detection { entity, start, end });
                done = end;
            }
        }
    }
}

/// Complete IPv6 address at `at`, including an embedded IPv4 address (`::ffff:192.0.2.1`), the zone and the prefix
/// length; `short` ones count too.
fn v6(text: &str, at: usize, short: bool) -> Option<(usize, usize)> {
    let inner = |b: &u8| b.is_ascii_hexdigit() || matches!(b, b':' | b'.');
    // The longest address has 45 bytes.
    let len = text.as_bytes()[at..].iter().take(48).take_while(|b| inner(b)).count();
    let value = &text[at..at + len];
    // A preceding colon belongs to the word before it, as in `host:2001:db8::1`.
    let value = match value.strip_prefix(':') {
        Some(shorter) if !shorter.starts_with(':') || shorter.starts_with("::") => shorter,
        _ => value,
    };
    let start = at + len - value.len();
    let value = value.trim_end_matches('.');
    // A trailing colon belongs to the sentence, unless it is the double colon of the address.
    let value = match value.strip_suffix(':') {
        Some(shorter) if !shorter.ends_with(':') => shorter,
        _ => value,
    };
    let end = start + value.len();
    let more = zone_len(&text[end..]);
    let more = more + prefix_len(&text[end + more..], 128);
    let digits = value.bytes().filter(u8::is_ascii_hexdigit).count();
    let groups = value.split(':').filter(|g| !g.is_empty()).count();
    // Names in source code are also joined by two colons: `bed::face`.
    let certain = more > 0 || value.contains(|c: char| c.is_ascii_digit());
    // The last number of an IPv4 address does not begin an IPv6 address.
    let cut =
        text[..start].strip_suffix('.').is_some_and(|before| before.ends_with(|c: char| c.is_ascii_digit()));
    let long = digits >= 3 && groups >= 2 && certain;
    let proper = (long || short) && !cut && stands_alone(text, start, end);
    (proper && value.parse::<Ipv6Addr>().is_ok()).then_some((start, end + more))
}

/// Length of the zone of an address, `%eth0`.
fn zone_len(after: &str) -> usize {
    let Some(zone) = after.strip_prefix('%') else { return 0 };
    let inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let zone = &zone[..zone.find(|c: char| !inner(c)).unwrap_or(zone.len())];
    let zone = zone.trim_end_matches(['.', '-', '_']);
    if zone.is_empty() { 0 } else { 1 + zone.len() }
}

/// Length of a prefix length such as `/64`, with a value of at most `most`; a longer path does not count.
fn prefix_len(after: &str, most: u32) -> usize {
    let Some(rest) = after.strip_prefix('/') else { return 0 };
    let len = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = rest.split_at(len);
    let within = len <= 3 && digits.parse::<u32>().is_ok_and(|bits| bits <= most);
    let goes_on = rest.starts_with(|c: char| c.is_alphanumeric() || c == '/' || c == '_')
        || rest.starts_with(['.', '-']) && rest[1..].starts_with(char::is_alphanumeric);
    if within && !goes_on { 1 + len } else { 0 }
}

/// Letters of scripts without spaces, which may be directly followed by a name.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' | '\u{20000}'..='\u{3ffff}')
}

/// Letters, digits, and characters that combine with letters, in any script.
fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || !c.is_ascii() && (is_combining_mark(c) || matches!(c, '\u{200c}' | '\u{200d}'))
}

/// Finds mail addresses around every `@`, including internationalized ones (RFC 6531).
fn emails(text: &str, found: &mut Vec<Detection>) {
    for at in memchr::memchr_iter(b'@', text.as_bytes()) {
        if let Some((start, end)) = email(text, at) {
            found.push(Detection { entity: Entity::Email, start, end });
        }
    }
}

/// Mail address around the `@` at `at`.
fn email(text: &str, at: usize) -> Option<(usize, usize)> {
    let (start, end) = (local_start(text, at)?, host_end(text, at + 1)?);
    // In `_jane@example.com_` the underscores mark italics.
    let italic = text[end..].starts_with('_') && text[start..].starts_with('_');
    let start = start + usize::from(italic);
    let goes_on = text[end..].starts_with(['@', '_']) && !italic;
    let joined = text[..start].chars().next_back().is_some_and(|c| c.is_alphanumeric() && !is_unspaced(c));
    (start < at && !goes_on && !joined).then_some((start, end))
}

/// Start of the local part before the `@` at `at`.
fn local_start(text: &str, at: usize) -> Option<usize> {
    // Mail allows at most 64 characters, which also bounds the work.
    let mut start = at;
    let mut after: Option<char> = None;
    for c in text[..at].chars().rev().take(64) {
        // A word in a script without spaces may directly precede an ASCII name.
        let parted = is_unspaced(c) && after.is_some_and(|c| c.is_ascii());
        if parted || !(is_letter(c) || "._%+-'".contains(c)) {
            break;
        }
        (start, after) = (start - c.len_utf8(), Some(c));
    }
    start += text[start..at].find(|c: char| c.is_alphanumeric() || c == '_')?;
    (!text[..at].ends_with('.')).then_some(start)
}

/// End of the host that begins at `from`: labels joined by dots, the last one a top-level domain.
fn host_end(text: &str, from: usize) -> Option<usize> {
    let inner = |c: char| is_letter(c) || c == '.' || c == '-';
    let len = text[from..].chars().take(255).take_while(|c| inner(*c)).map(char::len_utf8).sum::<usize>();
    let host = text[from..from + len].trim_end_matches(['.', '-']);
    let (name, top) = host.rsplit_once('.')?;
    // After an ASCII domain, text in a script without spaces continues the sentence.
    let top = match top.find(is_unspaced) {
        Some(cut) if top.starts_with(|c: char| c.is_ascii_alphabetic()) => &top[..cut],
        _ => top,
    };
    let coded = top.starts_with("xn--") && top.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let plain = top.chars().all(|c| is_letter(c) && !c.is_numeric());
    let labels =
        name.split('.').all(|part| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-'));
    let proper = coded || plain && (2..=24).contains(&top.chars().count());
    (proper && labels).then_some(from + name.len() + 1 + top.len())
}

fn urls(text: &str, bare: &Regex, found: &mut Vec<Detection>) {
    let entity = Entity::Url;
    for (start, end) in find_urls(text) {
        let end = start + text[start..end].trim_end_matches(['.', ',', '!', '?', ':', ')', '*']).len();
        found.push(Detection { entity, start, end });
    }
    for m in bare.find_iter(text) {
        let end = m.start() + m.as_str().trim_end_matches(['.', ',', '!', '?', ':', ')']).len();
        found.push(Detection { entity, start: m.start(), end });
    }
}
