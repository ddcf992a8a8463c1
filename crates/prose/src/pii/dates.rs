//! Dates and times of day.

use regex::Regex;

use super::Entity;
use super::detection::{Detection, compile, stands_alone};

/// Compiled patterns.
#[derive(Clone, Debug)]
pub(super) struct Dates {
    patterns: Vec<Regex>,
}

const MONTHS: &str = "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|\
Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)";

impl Dates {
    /// Compiles the patterns; `without_context` adds dates of two parts, which are as often fractions and scores.
    pub(super) fn new(without_context: bool) -> Dates {
        let day = "(?:[12][0-9]|3[01]|0?[1-9])";
        let time = "(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?";
        let mut patterns = vec![
            compile(&format!(
                r"(?:1[89]|20)[0-9]{{2}}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])(?:[T ]{time}(?:\.[0-9]{{1,9}})?(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?"
            )),
            compile(&format!(
                r"(?:{day}|1[0-2])[/.](?:{day}|1[0-2])[/.](?:(?:1[89]|20)[0-9]{{2}}|[0-9]{{2}})"
            )),
            compile(&format!(r"{MONTHS}\.?\s{day}(?:st|nd|rd|th)?(?:,?\s(?:1[0-9]|20)[0-9]{{2}})?")),
            compile(&format!(r"{day}(?:st|nd|rd|th)?\s(?:of\s)?{MONTHS}\.?(?:,?\s(?:1[0-9]|20)[0-9]{{2}})?")),
            // With hyphens and a year of four digits; two digits could be a score or a range.
            compile(&format!(r"(?:{day}|1[0-2])-(?:{day}|1[0-2])-(?:1[89]|20)[0-9]{{2}}")),
            compile(&format!(
                r"(?:{day}[-/]{MONTHS}|{MONTHS}[-/]{day})[-/](?:(?:1[89]|20)[0-9]{{2}}|[0-9]{{2}})"
            )),
            compile(&format!(r"{time}(?:\s?[AaPp]\.?[Mm]\b\.?)?")),
        ];
        if without_context {
            let year = "(?:(?:1[89]|20)[0-9]{2}|[0-9]{2})";
            patterns.push(compile(&format!(r"{MONTHS}-{year}|{day}-{MONTHS}|(?:1[0-2]|0?[1-9])/{year}")));
        }
        Dates { patterns }
    }

    pub(super) fn find(&self, text: &str, wanted: &impl Fn(Entity) -> bool, found: &mut Vec<Detection>) {
        if !wanted(Entity::DateTime) {
            return;
        }
        for pattern in &self.patterns {
            for m in pattern.find_iter(text) {
                let joined = text[..m.start()].ends_with(['.', ':', '/', '-']);
                // `5-20-2021-4` contains no date; `2021-05-20-` may be followed by anything.
                let hyphens = m.as_str().bytes().take(4).any(|b| b == b'-');
                let after = &text[m.end()..];
                let goes_on = after.starts_with(['/', ':']) || hyphens && after.starts_with('-');
                if !joined && !goes_on && stands_alone(text, m.start(), m.end()) {
                    found.push(Detection { entity: Entity::DateTime, start: m.start(), end: m.end() });
                }
            }
        }
    }
}
