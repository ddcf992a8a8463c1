//! US identity numbers.

use regex::Regex;

use super::Entity;
use super::detection::{Detection, compile, has_context, stands_alone};
use super::digits::{Group, is_single};

/// Compiled patterns.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    ssn: Regex,
    /// Numbers count without a word that names their kind.
    without_context: bool,
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

impl Ids {
    pub(super) fn new(without_context: bool) -> Ids {
        Ids { ssn: compile(r"[0-9]{3}[- .]?[0-9]{2}[- .]?[0-9]{4}"), without_context }
    }

    /// Finds identity numbers; `groups` are the digit groups of `text`.
    pub(super) fn find(
        &self,
        text: &str,
        groups: &[Group],
        wanted: &impl Fn(Entity) -> bool,
        found: &mut Vec<Detection>,
    ) {
        if wanted(Entity::UsSsn) {
            for m in self.ssn.find_iter(text) {
                let bare = m.len() < 11 || m.as_str().contains('.');
                let context = || self.without_context || has_context(text, m.start(), 40, &SSN_WORDS);
                if lone(text, m.start(), m.end()) && is_ssn(m.as_str()) && (!bare || context()) {
                    found.push(Detection { entity: Entity::UsSsn, start: m.start(), end: m.end() });
                }
            }
        }
        let (passport, license) = (wanted(Entity::UsPassport), wanted(Entity::UsDriverLicense));
        if passport || license {
            self.numbers(text, groups, (passport, license), found);
        }
    }

    /// Finds passport and licence numbers: up to two letters, then digits.
    fn numbers(
        &self,
        text: &str,
        groups: &[Group],
        (passport, license): (bool, bool),
        found: &mut Vec<Detection>,
    ) {
        let mut at = 0;
        while at < groups.len() {
            let before = text.as_bytes()[..groups[at].start].iter().rev();
            let letters = before.take(2).take_while(|b| b.is_ascii_uppercase()).count();
            let start = groups[at].start - letters;
            let near = |words: &[&str]| self.without_context || has_context(text, start, 40, words);
            let count = match number(text, groups, at, letters) {
                (Some(count), _) if passport && near(&PASSPORT_WORDS) => Some((Entity::UsPassport, count)),
                (_, Some(count)) if license && near(&LICENSE_WORDS) => Some((Entity::UsDriverLicense, count)),
                _ => None,
            };
            if let Some((entity, count)) = count {
                found.push(Detection { entity, start, end: groups[at + count - 1].end });
            }
            at += count.map_or(1, |(_, count)| count);
        }
    }
}

/// Numbers of groups from `at` that would form a passport number and a licence number.
fn number(text: &str, groups: &[Group], at: usize, letters: usize) -> (Option<usize>, Option<usize>) {
    let start = groups[at].start - letters;
    let (mut digits, mut passport, mut license) = (0, None, None);
    for (count, group) in (1..).zip(&groups[at..]) {
        digits += group.len();
        if digits > 14 {
            break;
        }
        if lone(text, start, group.end) {
            let is_passport = letters == 0 && digits == 9 && count == 1 || letters == 1 && digits == 8;
            passport = passport.or(is_passport.then_some(count));
            license = if digits >= 6 { Some(count) } else { license };
        }
        let between = groups.get(at + count).map_or("", |next| &text[group.end..next.start]);
        // After a hyphen the number continues; after a space another number begins once this one is long enough.
        if !is_single(between) || digits >= 6 && between != "-" {
            break;
        }
    }
    (passport, license)
}

fn lone(text: &str, start: usize, end: usize) -> bool {
    stands_alone(text, start, end) && !text[..start].ends_with(['-', '.']) && !text[end..].starts_with('-')
}

/// Areas 000, 666 and from 900, groups 00 and serials 0000 are never assigned, nor is 078-05-1120, which a printed card
/// made known; both separators must be the same.
fn is_ssn(value: &str) -> bool {
    let digits: String = value.chars().filter(char::is_ascii_digit).collect();
    let separators: Vec<char> = value.chars().filter(|c| !c.is_ascii_digit()).collect();
    let area = &digits[..3];
    let even = match separators.as_slice() {
        [] | [_] => true,
        [a, b] => a == b,
        _ => false,
    };
    even && digits != "078051120"
        && area != "000"
        && area != "666"
        && !area.starts_with('9')
        && &digits[3..5] != "00"
        && &digits[5..] != "0000"
}
