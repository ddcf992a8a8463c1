//! Payment cards and bank accounts: digits with separators, validated by length, prefix and check digits.

use regex::Regex;

use super::Entity;
use super::detection::{Detection, compile, stands_alone};
use super::digits::{Group, is_single};

/// Compiled patterns.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    account: Regex,
}

impl Numbers {
    pub(super) fn new() -> Numbers {
        Numbers { account: compile("[A-Z]{2}[0-9]{2}") }
    }

    /// Finds cards and accounts; `groups` are the digit groups of `text`.
    pub(super) fn find(
        &self,
        text: &str,
        groups: &[Group],
        wanted: &impl Fn(Entity) -> bool,
        found: &mut Vec<Detection>,
    ) {
        if wanted(Entity::Iban) {
            self.ibans(text, found);
        }
        if wanted(Entity::CreditCard) {
            cards(text, groups, found);
        }
    }

    fn ibans(&self, text: &str, found: &mut Vec<Detection>) {
        let mut done = 0;
        for m in self.account.find_iter(text) {
            if m.start() < done || text[..m.start()].ends_with(char::is_alphanumeric) {
                continue;
            }
            if let Some(end) = iban(text, m.start()) {
                found.push(Detection { entity: Entity::Iban, start: m.start(), end });
                done = end;
            }
        }
    }
}

/// End of the account that begins at `start`: as many letters and digits as its country requires, with at most one
/// separator between two of them.
fn iban(text: &str, start: usize) -> Option<usize> {
    let length = iban_length(&text[start..start + 2])?;
    let (mut value, mut separated) = (String::with_capacity(length), false);
    for (offset, c) in text[start..].char_indices() {
        match c {
            'A'..='Z' | '0'..='9' => (separated, _) = (false, value.push(c)),
            ' ' | '\u{a0}' | '-' if !separated => separated = true,
            _ => return None,
        }
        if value.len() == length {
            let end = start + offset + 1;
            return (stands_alone(text, start, end) && mod_97(&value) == Some(1)).then_some(end);
        }
    }
    None
}

fn cards(text: &str, groups: &[Group], found: &mut Vec<Detection>) {
    let mut at = 0;
    while at < groups.len() {
        let count = card(text, groups, at);
        if let Some(count) = count {
            let (start, end) = (groups[at].start, groups[at + count - 1].end);
            found.push(Detection { entity: Entity::CreditCard, start, end });
        }
        at += count.unwrap_or(1);
    }
}

/// Number of groups from `at` that form a card number. Among other numbers it must be grouped like a printed card; if
/// nothing else is joined to it, any grouping is accepted.
fn card(text: &str, groups: &[Group], at: usize) -> Option<usize> {
    const SHAPES: [&[usize]; 10] = [
        &[4, 4, 4, 4, 3],
        &[4, 4, 4, 4, 2],
        &[4, 4, 4, 4],
        &[4, 6, 5],
        &[4, 5, 6],
        &[4, 6, 4],
        &[4, 3, 3, 3],
        &[4, 4, 4, 1],
        &[4, 4, 5],
        &[4, 4, 4],
    ];
    let start = groups[at].start;
    let between = |at: usize| &text[groups[at].end..groups[at + 1].start];
    let joined = |at: usize| at + 1 < groups.len() && is_single(between(at));
    // A number has at most as many groups as the longest has digits.
    let run = 1 + (at..groups.len().min(at + 19)).take_while(|&at| joined(at)).count();
    let valid = |count: usize| {
        let end = groups[at + count - 1].end;
        let digits = groups[at..at + count].iter().map(|group| group.len()).sum::<usize>();
        (12..=19).contains(&digits) && stands_alone(text, start, end) && is_card(&text[start..end])
    };
    let shaped = |shape: &&[usize]| {
        let count = shape.len();
        count <= run
            && groups[at..at + count].iter().map(|group| group.len()).eq(shape.iter().copied())
            && (at + 1..at + count - 1).all(|next| between(next) == between(at))
    };
    if valid(1) {
        return Some(1);
    }
    let whole = at == 0 || !joined(at - 1);
    let shape = SHAPES.iter().find(|shape| shaped(shape) && valid(shape.len())).map(|shape| shape.len());
    shape.or_else(|| (whole && valid(run)).then_some(run))
}

/// Checks issuer, length and check digit of a payment card.
fn is_card(value: &str) -> bool {
    let digits: Vec<u32> = value.chars().filter_map(|c| c.to_digit(10)).collect();
    let prefix = |n: usize| digits[..n].iter().fold(0, |sum, d| sum * 10 + d);
    let length = digits.len();
    let issuer = match prefix(1) {
        // UATP, used by airlines.
        1 => length == 15,
        // Mastercard, and Mir.
        2 => matches!(prefix(4), 2221..=2720 | 2200..=2204) && length == 16,
        3 => match prefix(2) {
            34 | 37 => length == 15,
            36 | 38 | 39 => length == 14,
            30 => (prefix(3) <= 305 || prefix(3) == 309) && length == 14,
            35 => (3528..=3589).contains(&prefix(4)) && length == 16,
            _ => false,
        },
        4 => matches!(length, 13 | 16 | 19),
        // Mastercard, Dankort.
        5 => ((51..=55).contains(&prefix(2)) || prefix(4) == 5019) && length == 16 || is_maestro(prefix(4)),
        // Discover, UnionPay.
        6 => {
            let discover = prefix(4) == 6011 || prefix(2) == 65 || (644..=649).contains(&prefix(3));
            (discover || prefix(2) == 62) && (16..=19).contains(&length) || is_maestro(prefix(4))
        }
        _ => false,
    };
    issuer && luhn(&digits) == 0
}

/// Returns true for the first four digits of Maestro cards, which have 12 to 19 digits.
fn is_maestro(prefix: u32) -> bool {
    matches!(prefix, 5018 | 5020 | 5038 | 5893 | 6304 | 6759 | 6761..=6763)
}

/// Luhn sum modulo 10; 0 for a number with a valid check digit.
pub(super) fn luhn(digits: &[u32]) -> u32 {
    let doubled = |d: u32| if d > 4 { 2 * d - 9 } else { 2 * d };
    digits.iter().rev().enumerate().map(|(i, &d)| if i % 2 == 1 { doubled(d) } else { d }).sum::<u32>() % 10
}

/// IBAN modulo 97 (ISO 13616): 1 for a valid one.
pub(super) fn mod_97(value: &str) -> Option<u32> {
    let (head, tail) = value.split_at_checked(4)?;
    tail.chars().chain(head.chars()).try_fold(0, |rest, c| {
        let digit = c.to_digit(36)?;
        Some(if digit < 10 { rest * 10 + digit } else { rest * 100 + digit } % 97)
    })
}

/// Length of an IBAN by country (registry of ISO 13616, release 99).
pub(super) fn iban_length(country: &str) -> Option<usize> {
    const LENGTHS: [(usize, &str); 18] = [
        (15, "NO"),
        (16, "BE"),
        (18, "DK FI FK FO GL NL SD"),
        (19, "MK SI"),
        (20, "AT BA EE KZ LT LU MN XK"),
        (21, "CH HR LI LV"),
        (22, "BG BH CR DE GB GE IE ME RS VA"),
        (23, "AE GI IL IQ OM SO TL"),
        (24, "AD CZ ES MD PK RO SA SE SK TN VG"),
        (25, "LY PT ST"),
        (26, "IS TR"),
        (27, "BI DJ FR GR IT MC MR SM"),
        (28, "AL AZ BY CY DO GT HN HU LB NI PL SV"),
        (29, "BR EG PS QA UA"),
        (30, "JO KW MU YE"),
        (31, "MT SC"),
        (32, "LC"),
        (33, "RU"),
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

    /// One account per issuer whose cards are not printed in groups of four digits, with valid check digits.
    #[test]
    fn issuers() {
        for card in [
            "6759649826438453",
            "5020 0000 0000 0000 000",
            "6304 0000 0000",
            "122000000000003",
            "5019717010103742",
        ] {
            let mut digits: Vec<u32> = card.chars().filter_map(|c| c.to_digit(10)).collect();
            let last = digits.len() - 1;
            digits[last] = 0;
            digits[last] = (10 - luhn(&digits)) % 10;
            let right: String = digits.iter().map(|d| char::from(b'0' + *d as u8)).collect();
            let wrong = format!("{}{}", &right[..last], (digits[last] + 1) % 10);
            assert!(is_card(&right) && !is_card(&wrong), "{card}");
        }
    }

    /// Every country of the registry, with the length of its accounts.
    #[test]
    fn lengths_of_the_registry() {
        const REGISTRY: &str = "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 \
                                EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 \
                                IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 \
                                NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 \
                                SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30";
        for entry in REGISTRY.split_whitespace() {
            assert_eq!(iban_length(&entry[..2]), entry[2..].parse().ok(), "{entry}");
        }
    }
}
