//! US identity numbers, and postal addresses.

use super::{Entity, Found, compile, has_context, stands_alone};
use regex::Regex;

/// The compiled patterns.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    ssn: Regex,
    number: Regex,
    street: Regex,
    box_: Regex,
}

const SSN_WORDS: [&str; 5] = ["ssn", "social security", "social security number", "soc sec", "ss#"];
const PASSPORT_WORDS: [&str; 2] = ["passport", "passports"];
const LICENSE_WORDS: [&str; 9] = [
    "driver's license",
    "drivers license",
    "driver license",
    "driving license",
    "driving licence",
    "driver's licence",
    "driver’s license",
    "dl",
    "license number",
];

/// Kinds of streets in full and short.
const STREETS: &str = "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Way|Place|Pl|Square|Sq|\
Terrace|Ter|Parkway|Pkwy|Highway|Hwy|Circle|Cir|Trail|Alley|Crescent|Close|Gardens|Row";

impl Ids {
    pub(super) fn new() -> Ids {
        let city = r"(?:,?\s(?:Apt|Apartment|Suite|Ste|Unit|Floor|#)\.?\s?[0-9A-Za-z-]{1,6})?(?:,\s?[A-Z][A-Za-z.'-]+(?:\s[A-Z][A-Za-z.'-]+){0,2})?(?:,?\s[A-Z]{2}\b\.?(?:\s[0-9]{5}(?:-[0-9]{4})?)?)?";
        Ids {
            ssn: compile(r"[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}"),
            number: compile(r"[A-Z]{0,2}[0-9](?:[ -]?[0-9]){5,13}"),
            street: compile(&format!(
                r"[1-9][0-9]{{0,5}}[A-Za-z]?(?:-[0-9]{{1,4}})?\s(?:[NSEW]\.?\s|North\s|South\s|East\s|West\s)?(?:[A-Z][A-Za-z'.-]*\s|[0-9]{{1,3}}(?:st|nd|rd|th)\s){{1,3}}(?:{STREETS})\b\.?{city}"
            )),
            box_: compile(&format!(r"\b(?:P\.?\s?O\.?|Post Office)\s?Box\s[0-9]{{1,6}}{city}")),
        }
    }

    pub(super) fn find(&self, text: &str, wanted: &impl Fn(Entity) -> bool, found: &mut Vec<Found>) {
        if wanted(Entity::UsSsn) {
            for m in self.ssn.find_iter(text) {
                let bare = m.len() == 9;
                let context = || has_context(text, m.start(), 40, &SSN_WORDS);
                if lone(text, m.start(), m.end()) && is_ssn(m.as_str()) && (!bare || context()) {
                    found.push(Found { entity: Entity::UsSsn, start: m.start(), end: m.end() });
                }
            }
        }
        let (passport, license) = (wanted(Entity::UsPassport), wanted(Entity::UsDriverLicense));
        if passport || license {
            self.numbers(text, passport, license, found);
        }
        if wanted(Entity::Address) {
            let entity = Entity::Address;
            for m in self.street.find_iter(text).chain(self.box_.find_iter(text)) {
                if !text[..m.start()].ends_with(|c: char| c.is_alphanumeric() || ".,$".contains(c)) {
                    found.push(Found { entity, start: m.start(), end: m.end() });
                }
            }
        }
    }

    fn numbers(&self, text: &str, passport: bool, license: bool, found: &mut Vec<Found>) {
        for m in self.number.find_iter(text) {
            let (start, end) = (m.start(), m.end());
            if !lone(text, start, end) {
                continue;
            }
            let letters = m.as_str().bytes().take_while(u8::is_ascii_uppercase).count();
            let digits = m.as_str().bytes().filter(u8::is_ascii_digit).count();
            let whole = m.len() == letters + digits;
            let is_passport = whole && (letters, digits) == (0, 9) || (letters, digits) == (1, 8);
            if passport && is_passport && has_context(text, start, 40, &PASSPORT_WORDS) {
                found.push(Found { entity: Entity::UsPassport, start, end });
            } else if license && (6..=14).contains(&digits) && has_context(text, start, 40, &LICENSE_WORDS) {
                found.push(Found { entity: Entity::UsDriverLicense, start, end });
            }
        }
    }
}

fn lone(text: &str, start: usize, end: usize) -> bool {
    stands_alone(text, start, end) && !text[..start].ends_with(['-', '.']) && !text[end..].starts_with('-')
}

/// Areas 000, 666 and from 900, groups 00 and serials 0000 are never given; both separators are the same.
fn is_ssn(value: &str) -> bool {
    let digits: String = value.chars().filter(char::is_ascii_digit).collect();
    let separators: Vec<char> = value.chars().filter(|c| !c.is_ascii_digit()).collect();
    let area = &digits[..3];
    let even = match separators.as_slice() {
        [] => true,
        [a, b] => a == b,
        _ => false,
    };
    even && area != "000"
        && area != "666"
        && !area.starts_with('9')
        && &digits[3..5] != "00"
        && &digits[5..] != "0000"
}
