//! Telephone numbers, payment cards and bank accounts: digits with separators, judged by length, prefix, check digits
//! and context.

use super::{Entity, Found, compile, has_context, stands_alone};
use regex::Regex;

/// The compiled patterns.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    phone: Regex,
    card: Regex,
    iban: Regex,
}

const PHONE_WORDS: [&str; 16] = [
    "phone",
    "telephone",
    "tel",
    "call",
    "fax",
    "mobile",
    "cell",
    "whatsapp",
    "text",
    "sms",
    "dial",
    "ring",
    "reach",
    "contact",
    "hotline",
    "ph",
];

impl Numbers {
    pub(super) fn new() -> Numbers {
        Numbers {
            phone: compile(r"(?:\+|\(\+?)?[0-9][0-9()./\u{a0} \u{2010}\u{2011}\u{2013}-]{5,22}[0-9]"),
            card: compile(r"[0-9](?:[ -]?[0-9]){12,18}"),
            iban: compile(r"[A-Z]{2}[0-9]{2}(?:[ \u{a0}]?[A-Z0-9]){11,30}"),
        }
    }

    pub(super) fn find(&self, text: &str, wanted: &impl Fn(Entity) -> bool, found: &mut Vec<Found>) {
        if wanted(Entity::Iban) {
            self.ibans(text, found);
        }
        if wanted(Entity::CreditCard) {
            for m in self.card.find_iter(text) {
                if stands_alone(text, m.start(), m.end()) && is_card(m.as_str()) {
                    found.push(Found { entity: Entity::CreditCard, start: m.start(), end: m.end() });
                }
            }
        }
        if wanted(Entity::Phone) {
            for m in self.phone.find_iter(text) {
                self.phone(text, m.start(), m.end(), found);
            }
        }
    }

    fn ibans(&self, text: &str, found: &mut Vec<Found>) {
        for m in self.iban.find_iter(text) {
            let start = m.start();
            if text[..start].ends_with(char::is_alphanumeric) {
                continue;
            }
            // The pattern may run into the next words: the length of the country decides.
            let Some(length) = iban_length(&m.as_str()[..2]) else { continue };
            let mut value = String::new();
            let mut end = start;
            for (offset, c) in m.as_str().char_indices() {
                if value.len() == length {
                    break;
                }
                if c.is_ascii_alphanumeric() {
                    value.push(c);
                    end = start + offset + 1;
                }
            }
            if value.len() == length && stands_alone(text, start, end) && mod_97(&value) == Some(1) {
                found.push(Found { entity: Entity::Iban, start, end });
            }
        }
    }

    fn phone(&self, text: &str, start: usize, end: usize, found: &mut Vec<Found>) {
        let value = &text[start..end];
        let end = match value.rfind('(').filter(|_| value.matches('(').count() > value.matches(')').count()) {
            Some(cut) if cut > 0 => {
                start + value[..cut].trim_end_matches(|c: char| !c.is_ascii_digit()).len()
            }
            _ => end,
        };
        let value = &text[start..end];
        let lone = stands_alone(text, start, end)
            && !text[end..].starts_with(['%', '$', '€', '°', '@'])
            && !text[..start].ends_with(['$', '€', '£', '#', '.', '/', '-', '_', '=', '@']);
        if lone && is_phone(value, has_context(text, start, 28, &PHONE_WORDS)) {
            found.push(Found { entity: Entity::Phone, start, end });
        }
    }
}

/// International numbers by their `+`; North American ones by their groups; others only with a word before them.
fn is_phone(value: &str, context: bool) -> bool {
    let digits: Vec<u8> = value.bytes().filter(u8::is_ascii_digit).collect();
    let plus = value.starts_with('+') || value.starts_with("(+");
    if value.contains("  ") || looks_like_date(value) || value.matches('.').count() == 3 && !plus {
        return false;
    }
    let groups: Vec<usize> =
        value.split(|c: char| !c.is_ascii_digit()).filter(|g| !g.is_empty()).map(str::len).collect();
    if plus {
        return (8..=15).contains(&digits.len()) && digits[0] != b'0';
    }
    let national: &[usize] = match groups.as_slice() {
        [1, rest @ ..] if digits[0] == b'1' => rest,
        all => all,
    };
    let first = if national.len() < groups.len() { 1 } else { 0 };
    let nanp = national == [3, 3, 4] && digits[first] >= b'2' && digits[first + 3] >= b'2';
    nanp || context
        && (7..=15).contains(&digits.len())
        && groups.len() <= 6
        && groups.iter().all(|&g| g <= 11)
}

fn looks_like_date(value: &str) -> bool {
    let parts: Vec<&str> = value.split(['-', '/', '.', ' ']).collect();
    let number = |i: usize| parts.get(i).and_then(|p| p.parse::<u32>().ok()).unwrap_or(0);
    parts.len() >= 3
        && parts[0].len() == 4
        && (1900..2100).contains(&number(0))
        && (1..=12).contains(&number(1))
        || parts.len() == 3
            && parts[2].len() == 4
            && (1900..2100).contains(&number(2))
            && number(0) <= 31
            && parts[0].len() <= 2
        || parts.len() == 2 && parts.iter().all(|p| p.len() == 4) && number(0) < number(1) && number(1) < 2100
}

/// Issuer, length and check digit of a payment card.
fn is_card(value: &str) -> bool {
    let digits: Vec<u32> = value.chars().filter_map(|c| c.to_digit(10)).collect();
    let prefix = |n: usize| digits[..n].iter().fold(0, |sum, d| sum * 10 + d);
    let length = digits.len();
    let issuer = match prefix(1) {
        4 => matches!(length, 13 | 16 | 19),
        5 => (51..=55).contains(&prefix(2)) && length == 16,
        2 => (2221..=2720).contains(&prefix(4)) && length == 16,
        3 => match prefix(2) {
            34 | 37 => length == 15,
            36 | 38 => length == 14,
            30 => prefix(3) <= 305 && length == 14,
            35 => (3528..=3589).contains(&prefix(4)) && length == 16,
            _ => false,
        },
        6 => (prefix(4) == 6011 || prefix(2) == 65 || (644..=649).contains(&prefix(3))) && length == 16,
        _ => false,
    };
    issuer && luhn(&digits) == 0
}

/// The Luhn sum modulo 10; 0 for a number that ends in its check digit.
pub(super) fn luhn(digits: &[u32]) -> u32 {
    let doubled = |d: u32| if d > 4 { 2 * d - 9 } else { 2 * d };
    digits.iter().rev().enumerate().map(|(i, &d)| if i % 2 == 1 { doubled(d) } else { d }).sum::<u32>() % 10
}

/// An IBAN modulo 97 (ISO 13616): 1 for a right one.
pub(super) fn mod_97(value: &str) -> Option<u32> {
    let (head, tail) = value.split_at_checked(4)?;
    tail.chars().chain(head.chars()).try_fold(0, |rest, c| {
        let digit = c.to_digit(36)?;
        Some(if digit < 10 { rest * 10 + digit } else { rest * 100 + digit } % 97)
    })
}

/// The length of an IBAN by country (registry of ISO 13616).
pub(super) fn iban_length(country: &str) -> Option<usize> {
    const LENGTHS: [(usize, &str); 17] = [
        (15, "NO"),
        (16, "BE"),
        (18, "DK FI FO GL NL"),
        (19, "MK SI"),
        (20, "AT BA EE KZ LT LU XK"),
        (21, "CH HR LI LV"),
        (22, "BG BH CR DE GB GE IE ME RS VA"),
        (23, "AE GI IL IQ TL"),
        (24, "AD CZ ES MD PK RO SA SE SK TN VG"),
        (25, "LY PT ST"),
        (26, "IS TR"),
        (27, "BI DJ FR GR IT MC MR SM"),
        (28, "AL AZ BY CY DO EG GT HU LB NI PL SV"),
        (29, "BR PS QA UA"),
        (30, "JO KW MU"),
        (31, "MT SC"),
        (32, "LC"),
    ];
    LENGTHS
        .iter()
        .find(|(_, countries)| countries.split(' ').any(|c| c == country))
        .map(|(length, _)| *length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_digits() {
        assert_eq!(mod_97("GB82WEST12345698765432"), Some(1));
        assert_ne!(mod_97("GB82WEST12345698765433"), Some(1));
        assert!(is_card("4111 1111 1111 1111") && is_card("378282246310005"));
        assert!(!is_card("4111 1111 1111 1112") && !is_card("9111111111111111"));
    }
}
