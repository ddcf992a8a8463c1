//! `personal_data`: mail addresses, cards, accounts, telephone numbers and others, found by the caller's detectors.

use serde::Deserialize;

use crate::config::Setting;
use crate::needs::{Needs, PersonalDataFinder, PersonalDataOptions};
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Finding, Reason};

/// Bytes of the longest finding, with its surroundings.
const HORIZON: usize = 128;
/// Bytes of an unbroken run at the end of a text that may become one finding, such as a long address.
const MAX_RUN: usize = 2048;
/// Bytes before the open text that may decide about a finding in it.
const REACH: usize = 1024;

/// Names in configurations, names of detectors, and masks, where they differ from the name.
const NAMES: [(&str, &str, &str); 7] = [
    ("card", "credit_card", "CREDIT_CARD"),
    ("email", "email", "EMAIL_ADDRESS"),
    ("iban", "iban", "IBAN_CODE"),
    ("ssn", "us_ssn", "US_SSN"),
    ("phone", "phone", "PHONE_NUMBER"),
    ("ip", "ip", "IP_ADDRESS"),
    ("date", "date_time", "DATE_TIME"),
];

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Kinds that are looked for.
    #[serde(deserialize_with = "crate::registry::list")]
    kinds: Vec<String>,
    /// Countries (ISO 3166, two letters) whose telephone numbers are found in their national form.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    phone_countries: Vec<String>,
    /// Numbers of countries, banks and registries count without a word near them that names their kind.
    #[serde(default)]
    without_context: bool,
}

/// The rail.
pub struct PersonalData {
    finder: Box<dyn PersonalDataFinder>,
    /// Configured name of each detector's kind.
    names: Vec<(String, String)>,
}

impl RailKind for PersonalData {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "personal_data",
        summary: "mail addresses, cards, accounts, telephone numbers and other personal data",
        directions: &Direction::ALL,
        actions: &[Action::Mask, Action::Block, Action::Omit, Action::Flag],
        cost: Cost::Text,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        let Some(detectors) = &needs.personal_data else {
            return Err(OptionError::new("kinds", "this program has no detectors of personal data"));
        };
        let known = detectors.kinds();
        let detector = |name: &String| {
            let alias =
                NAMES.iter().find(|(configured, ..)| configured == name).map(|(_, detector, _)| *detector);
            alias.unwrap_or(name).to_string()
        };
        let names: Vec<(String, String)> =
            options.kinds.iter().map(|name| (detector(name), name.clone())).collect();
        if let Some((_, name)) = names.iter().find(|(kind, _)| !known.contains(&kind.as_str())) {
            let aliases = NAMES.iter().map(|(configured, ..)| *configured);
            let all: Vec<&str> = aliases.chain(known.iter().copied()).collect();
            let hint = fathom_base::recipe::suggest_name(name, &all, "there are");
            return Err(OptionError::new("kinds", format!("no kind is called `{name}`; {hint}")));
        }
        if names.is_empty() {
            return Err(OptionError::new("kinds", "is empty; name at least one kind"));
        }
        let finder = detectors.finder(&PersonalDataOptions {
            kinds: names.iter().map(|(kind, _)| kind.clone()).collect(),
            phone_countries: options.phone_countries,
            without_context: options.without_context,
        });
        let finder = finder.map_err(|error| OptionError::new("phone_countries", error.to_string()))?;
        Ok(Box::new(PersonalData { finder, names }))
    }
}

impl Rail for PersonalData {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let begin = begin(judged);
        let mut findings = self.finder.find(&judged.text[begin..]);
        for finding in &mut findings {
            finding.span = finding.span.start + begin..finding.span.end + begin;
            if let Some((_, name)) = self.names.iter().find(|(kind, _)| *kind == finding.kind) {
                finding.kind = name.clone().into();
            }
        }
        // Findings before the open text were handled when it was open.
        findings.retain(|finding| finding.span.end > judged.from);
        Ok(Opinion::of(Reason::PersonalData, findings))
    }

    fn horizon(&self) -> Horizon {
        Horizon::Bytes(HORIZON)
    }

    fn mark(&self, judged: &RailInput<'_>, _: &Opinion) -> usize {
        let text = judged.text;
        // An unbroken run that reaches the end may become one finding.
        let run = text.len() - text.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let most = if run <= MAX_RUN { run.max(HORIZON) } else { HORIZON };
        let back = text.floor_char_boundary(text.len().saturating_sub(most));
        self.finder.first_open(text).min(text.len() - if run <= MAX_RUN { run } else { HORIZON }).max(back)
    }

    fn mask(&self, finding: &Finding) -> String {
        let kind: &str = &finding.kind;
        let mask = NAMES.iter().find(|(configured, detector, _)| kind == *configured || kind == *detector);
        mask.map_or_else(|| format!("<{}>", kind.to_uppercase()), |(.., mask)| format!("<{mask}>"))
    }
}

/// Beginning of the text that decides about the open part.
fn begin(judged: &RailInput<'_>) -> usize {
    let (text, from) = (judged.text, judged.from);
    if judged.whole || from <= REACH {
        return 0;
    }
    let back = text.ceil_char_boundary(from - REACH);
    let space = text[back..from].find(char::is_whitespace);
    space.map_or(back, |at| text.ceil_char_boundary(back + at + 1))
}
