//! Replacement text for a detection.

use super::numbers::{iban_length, luhn, mod_97};
use super::{Action, Entity, gazetteer, places};
use std::fmt::Write;

/// Writes the mark, invented value or hash for `value` to `out`.
pub(super) fn write(action: Action, entity: Entity, value: &str, key: &[u8; 32], out: &mut String) {
    let mark = entity.mark();
    match action {
        Action::Redact => {
            let _ = write!(out, "<{mark}>");
        }
        Action::Hash => {
            let hash = hash(entity, value, key).to_hex();
            let _ = write!(out, "<{mark}:{}>", &hash[..16]);
        }
        Action::Replace => out.push_str(&invented(entity, value, key)),
    }
}

/// Keyed hash of a value, ignoring case and separators.
fn hash(entity: Entity, value: &str, key: &[u8; 32]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(entity.mark().as_bytes());
    let plain: String = value.chars().filter(|c| c.is_alphanumeric() || *c == '@').collect();
    hasher.update(plain.to_lowercase().as_bytes());
    hasher.finalize()
}

/// Numbers drawn from a hash.
struct Draws {
    bytes: [u8; 32],
    next: usize,
}

impl Draws {
    fn below(&mut self, n: u32) -> u32 {
        let at = self.next % 28;
        self.next += 3;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(bytes) % n
    }
    fn word<'a>(&mut self, list: &'a str) -> &'a str {
        let words: Vec<&str> = list.split_whitespace().collect();
        words[self.below(words.len() as u32) as usize]
    }
    /// Replaces digits by digits and letters by letters.
    fn like(&mut self, value: &str) -> String {
        let draw = |c: char, d: &mut Draws| match c {
            '0'..='9' => char::from(b'0' + d.below(10) as u8),
            'A'..='Z' => char::from(b'A' + d.below(26) as u8),
            'a'..='z' => char::from(b'a' + d.below(26) as u8),
            c => c,
        };
        value.chars().map(|c| draw(c, self)).collect()
    }
}

/// A value of the same kind without an owner: reserved hosts, networks and numbers where they exist.
fn invented(entity: Entity, value: &str, key: &[u8; 32]) -> String {
    let mut draws = Draws { bytes: *hash(entity, value, key).as_bytes(), next: 0 };
    match entity {
        Entity::Email => {
            let (given, number) = (draws.word(gazetteer::GIVEN).to_lowercase(), draws.below(1000));
            format!("{given}{number}@example.com")
        }
        Entity::Url => format!("https://example.com/{:08x}", draws.below(u32::MAX)),
        Entity::Ip if value.contains(':') => {
            format!("2001:db8::{:x}:{:x}", draws.below(65536), draws.below(65536))
        }
        Entity::Ip => format!("192.0.2.{}", draws.below(256)),
        Entity::Phone => phone(value, &mut draws),
        Entity::CreditCard => card(value, &mut draws),
        Entity::Iban => iban(value, &mut draws),
        // Areas from 900 are never assigned.
        Entity::UsSsn => {
            format!("9{:02}-{:02}-{:04}", draws.below(100), 1 + draws.below(99), 1 + draws.below(9999))
        }
        Entity::Address => format!("{} Example Street, Springfield", 1 + draws.below(999)),
        Entity::DateTime => date(value, &mut draws),
        Entity::Location => places::any(draws.below(u32::MAX)).to_owned(),
        Entity::Person => {
            let given = draws.word(gazetteer::GIVEN).to_string();
            if value.contains(' ') { format!("{given} {}", draws.word(gazetteer::SURNAMES)) } else { given }
        }
        // Numbers of passports, licences, countries and registries.
        _ => draws.like(value),
    }
}

/// 555-0100 to 555-0199 are reserved for fiction; other countries' numbers keep their shape.
fn phone(value: &str, draws: &mut Draws) -> String {
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    if digits == 10 || digits == 11 && value.trim_start_matches('+').starts_with('1') {
        let prefix = if digits == 11 { if value.starts_with('+') { "+1 " } else { "1-" } } else { "" };
        return format!("{prefix}{}-555-01{:02}", 201 + draws.below(700), draws.below(100));
    }
    let code = if value.starts_with('+') { 3.min(value.len()) } else { 0 };
    format!("{}{}", &value[..code], draws.like(&value[code..]))
}

/// Keeps separators and length; the first digit, 4, is Visa's test range, the last makes the Luhn sum valid.
fn card(value: &str, draws: &mut Draws) -> String {
    let length = value.bytes().filter(u8::is_ascii_digit).count();
    let mut digits: Vec<u32> = (0..length).map(|i| if i == 0 { 4 } else { draws.below(10) }).collect();
    digits[length - 1] = 0;
    digits[length - 1] = (10 - luhn(&digits)) % 10;
    let mut next = digits.iter();
    value
        .chars()
        .map(|c| if c.is_ascii_digit() { next.next().map_or(c, |&d| char::from(b'0' + d as u8)) } else { c })
        .collect()
}

/// Keeps the country; the check digits are valid.
fn iban(value: &str, draws: &mut Draws) -> String {
    let country = &value[..2];
    let length = iban_length(country).unwrap_or(22);
    let account: String = (4..length).map(|_| char::from(b'0' + draws.below(10) as u8)).collect();
    let rest = mod_97(&format!("{country}00{account}")).unwrap_or(0);
    format!("{country}{:02}{account}", 98 - rest)
}

/// Keeps the form with other digits: a day up to 28, a month, a nearby year.
fn date(value: &str, draws: &mut Draws) -> String {
    let mut out = String::new();
    let mut number = String::new();
    for c in value.chars().chain(['\0']) {
        if c.is_ascii_digit() {
            number.push(c);
            continue;
        }
        if !number.is_empty() {
            let _ = match number.len() {
                4 => write!(out, "{}", 1950 + draws.below(75)),
                1 => write!(out, "{}", 1 + draws.below(9)),
                _ => write!(out, "{:02}", 1 + draws.below(12)),
            };
            number.clear();
        }
        if c != '\0' {
            out.push(c);
        }
    }
    out
}
