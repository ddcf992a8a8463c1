//! Mail addresses, URLs and IP addresses.

use super::{Entity, Found, compile, has_context, stands_alone};
use crate::filter::find_urls;
use regex::Regex;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The compiled patterns.
#[derive(Clone, Debug)]
pub(super) struct Net {
    v4: Regex,
    v6: Regex,
    bare: Regex,
}

impl Net {
    pub(super) fn new() -> Net {
        Net {
            v4: compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"),
            v6: compile(r"[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}"),
            bare: compile(r"(?i)\bwww\.[a-z0-9.-]+\.[a-z]{2,24}(?:/[^\s<>\x22']*)?"),
        }
    }

    pub(super) fn find(&self, text: &str, wanted: &impl Fn(Entity) -> bool, found: &mut Vec<Found>) {
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

    fn addresses(&self, text: &str, found: &mut Vec<Found>) {
        let entity = Entity::Ip;
        for m in self.v4.find_iter(text) {
            let (start, end) = (m.start(), m.end());
            let whole = stands_alone(text, start, end)
                && !text[..start].ends_with('.')
                && !text[end..]
                    .strip_prefix('.')
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            let version = has_context(text, start, 12, &["version", "release", "v", "section", "chapter"]);
            if whole && !version && m.as_str().parse::<Ipv4Addr>().is_ok_and(|ip| !ip.is_unspecified()) {
                found.push(Found { entity, start, end });
            }
        }
        if memchr::memchr(b':', text.as_bytes()).is_none() {
            return;
        }
        for m in self.v6.find_iter(text) {
            // A colon before it belongs to the word there, as in `host:2001:db8::1`.
            let value = m.as_str();
            let value = match value.strip_prefix(':') {
                Some(shorter) if !shorter.starts_with(':') => shorter,
                _ => value,
            };
            let start = m.start() + m.len() - value.len();
            // A colon at the end belongs to the sentence, unless it is the double colon of the address.
            let value = match value.strip_suffix(':') {
                Some(shorter) if !shorter.ends_with(':') => shorter,
                _ => value,
            };
            let end = start + value.len();
            let digits = value.bytes().filter(u8::is_ascii_hexdigit).count();
            let groups = value.split(':').filter(|g| !g.is_empty()).count();
            if digits >= 3
                && groups >= 2
                && stands_alone(text, start, end)
                && value.parse::<Ipv6Addr>().is_ok()
            {
                found.push(Found { entity, start, end });
            }
        }
    }
}

/// Mail addresses around every `@`.
fn emails(text: &str, found: &mut Vec<Found>) {
    let bytes = text.as_bytes();
    let local = |b: &u8| b.is_ascii_alphanumeric() || b"._%+-'".contains(b);
    for at in memchr::memchr_iter(b'@', bytes) {
        // 64 characters of name and 255 of host are the most that mail allows, and bound the work.
        let mut start = at - bytes[..at].iter().rev().take(64).take_while(|b| local(b)).count();
        while start < at && !bytes[start].is_ascii_alphanumeric() {
            start += 1;
        }
        let len = bytes[at + 1..]
            .iter()
            .take(255)
            .take_while(|b| b.is_ascii_alphanumeric() || b".-".contains(b))
            .count();
        let host = text[at + 1..at + 1 + len].trim_end_matches(['.', '-']);
        let Some((name, top)) = host.rsplit_once('.') else { continue };
        let proper = start < at
            && bytes[at - 1] != b'.'
            && (2..=24).contains(&top.len())
            && top.bytes().all(|b| b.is_ascii_alphabetic())
            && name.split('.').all(|part| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-'));
        let end = at + 1 + host.len();
        if proper && !text[end..].starts_with(['@', '_']) && !text[..start].ends_with(char::is_alphanumeric) {
            found.push(Found { entity: Entity::Email, start, end });
        }
    }
}

fn urls(text: &str, bare: &Regex, found: &mut Vec<Found>) {
    let entity = Entity::Url;
    for (start, end) in find_urls(text) {
        let end = start + text[start..end].trim_end_matches(['.', ',', '!', '?', ':', ')', '*']).len();
        found.push(Found { entity, start, end });
    }
    for m in bare.find_iter(text) {
        let end = m.start() + m.as_str().trim_end_matches(['.', ',', '!', '?', ':', ')']).len();
        found.push(Found { entity, start: m.start(), end });
    }
}
