//! Numbers that countries, health services, banks and registries give out: forms, check digits, and the words that name them.
//!
//! An unmistakable form, or one with a strong check, counts wherever it stands. One that any number may have counts only
//! near a word of its kind, unless the caller asks for all. What a kind's check asks for has to hold in either case; as in
//! Presidio, Singapore's identity cards, Germany's VAT numbers and India's tax registrations are recognised by their form alone.

mod checks;
mod coins;
mod kinds;

use regex::Regex;

use super::Entity;
use super::detection::{Detection, compile, has_context};

/// Bytes before a number in which a word may name its kind.
const REACH: usize = 60;

/// Compiled forms of the kinds that are looked for.
#[derive(Clone, Debug)]
pub(super) struct NationalNumbers {
    kinds: Vec<CompiledKind>,
    without_context: bool,
}

#[derive(Clone, Debug)]
struct CompiledKind {
    entity: Entity,
    certain: Option<Regex>,
    doubtful: Option<Regex>,
    words: Vec<&'static str>,
    /// Whether the same letters in the other case are another number.
    is_cased: bool,
    check: fn(&[u8]) -> bool,
}

/// Returns whether a kind is one of this module.
pub(super) fn is_national(entity: Entity) -> bool {
    kinds::KINDS.iter().any(|kind| kind.entity == entity)
}

impl NationalNumbers {
    /// Compiles the forms of some kinds; `without_context` lets doubtful ones count anywhere.
    pub(super) fn new(entities: &[Entity], without_context: bool) -> NationalNumbers {
        let kinds =
            kinds::KINDS.iter().filter(|kind| entities.contains(&kind.entity)).map(|kind| CompiledKind {
                entity: kind.entity,
                certain: form(kind.certain),
                doubtful: form(kind.doubtful),
                words: kind.words.split('|').filter(|word| !word.is_empty()).collect(),
                is_cased: kind.entity == Entity::Crypto,
                check: kind.check,
            });
        NationalNumbers { kinds: kinds.collect(), without_context }
    }

    /// Finds numbers of all compiled kinds.
    pub(super) fn find(&self, text: &str, found: &mut Vec<Detection>) {
        for kind in &self.kinds {
            for (form, counts) in [(&kind.certain, true), (&kind.doubtful, self.without_context)] {
                for m in form.iter().flat_map(|form| form.find_iter(text)) {
                    let (entity, start, end) = (kind.entity, m.start(), m.end());
                    let is_named = || has_context(text, start, REACH, &kind.words);
                    if (kind.check)(&plain(m.as_str(), kind.is_cased)) && (counts || is_named()) {
                        found.push(Detection { entity, start, end });
                    }
                }
            }
        }
    }
}

/// A form of ASCII between word boundaries, in either case. One that begins with flags has its own boundaries and case.
fn form(pattern: &str) -> Option<Regex> {
    match pattern {
        "" => None,
        own if ["(?-u", "(?i"].iter().any(|flags| own.starts_with(flags)) => Some(compile(own)),
        _ => Some(compile(&format!(r"(?i)\b(?-u:{pattern})\b"))),
    }
}

/// The letters and digits of a number; letters as capitals, unless their case counts.
fn plain(number: &str, is_cased: bool) -> Vec<u8> {
    let plain = number.bytes().filter(u8::is_ascii_alphanumeric);
    plain.map(|byte| if is_cased { byte } else { byte.to_ascii_uppercase() }).collect()
}
