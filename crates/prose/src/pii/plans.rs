//! National numbering plans: checks digits against the national formats of countries, using libphonenumber's tables.
//!
//! Nearly any number of eight to ten digits is valid in some country, so the tables are consulted only for countries
//! named in an option, and for a country named before the number: "my Israeli number is 09-7625400".

use phonenumber::{Mode, country::Id};

use super::detection::has_context;

/// Countries with the words that denote them.
const NAMES: &str = "AR argentina argentine argentinian|AT austria austrian|AU australia australian|BE belgium belgian|\
BR brazil brazilian|BG bulgaria bulgarian|CA canada canadian|CH switzerland swiss|CL chile chilean|CN china chinese|\
CO colombia colombian|CZ czechia czech|DE germany german|DK denmark danish|EG egypt egyptian|ES spain spanish|\
FI finland finnish|FR france french|GB britain british uk england english|GR greece greek|HK hongkong|HR croatia croatian|\
HU hungary hungarian|ID indonesia indonesian|IE ireland irish|IL israel israeli|IN india indian|IT italy italian|\
JP japan japanese|KE kenya kenyan|KR korea korean|MA morocco moroccan|MX mexico mexican|MY malaysia malaysian|\
NG nigeria nigerian|NL netherlands dutch|NO norway norwegian|NZ zealand|PE peru peruvian|PH philippines philippine|\
PK pakistan pakistani|PL poland polish|PT portugal portuguese|RO romania romanian|RU russia russian|SA saudi|\
SE sweden swedish|SG singapore singaporean|SK slovakia slovak|TH thailand thai|TN tunisia tunisian|TR turkey turkish|\
TW taiwan taiwanese|UA ukraine ukrainian|US american|VN vietnam vietnamese|ZA african";

/// Words that introduce a number.
const NUMBER_WORDS: [&str; 4] = ["number", "numbers", "line", "no"];
/// Number of bytes before a number in which those words are searched.
const REACH: usize = 40;

/// Countries whose numbers count without context, and words that denote countries.
#[derive(Clone, Debug)]
pub(super) struct Plans {
    always: Vec<Id>,
    named: Vec<(Id, Vec<&'static str>)>,
}

impl Plans {
    /// Creates plans that always apply these countries (ISO 3166, two letters).
    pub(super) fn new(countries: &[String]) -> Result<Plans, String> {
        let id = |code: &str| code.to_ascii_uppercase().parse::<Id>().map_err(|_| code.to_owned());
        let always = countries.iter().map(|code| id(code)).collect::<Result<_, _>>()?;
        let named = NAMES.split('|').filter_map(|entry| {
            let (code, names) = entry.split_once(' ')?;
            Some((id(code).ok()?, names.split(' ').collect()))
        });
        Ok(Plans { always, named: named.collect() })
    }

    /// Candidate countries of a number at `start`; `None` if no country is named.
    pub(super) fn countries(&self, text: &str, start: usize) -> Option<Vec<Id>> {
        let mut countries = self.always.clone();
        if has_context(text, start, REACH, &NUMBER_WORDS) {
            let here = self.named.iter().filter(|(_, names)| has_context(text, start, REACH, names));
            countries.extend(here.map(|(id, _)| *id));
        }
        (!countries.is_empty()).then_some(countries)
    }

    /// Returns true if the digit groups form a number of one of the countries. With a national prefix (0, or 8 in
    /// Russia) any grouping is accepted; otherwise the grouping must be the country's, with at least two groups.
    pub(super) fn fits<'a>(&self, countries: &[Id], groups: impl Iterator<Item = &'a str> + Clone) -> bool {
        let digits: String = groups.clone().collect();
        countries.iter().any(|country| {
            let Ok(number) = phonenumber::parse(Some(*country), &digits) else { return false };
            if !number.is_valid() {
                return false;
            }
            let (national, prefixed) = (number.national().to_string(), digits.starts_with(['0', '8']));
            if prefixed && national.len() < digits.len() {
                return true;
            }
            let written = number.format().mode(Mode::National).to_string();
            let lens =
                written.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty()).map(str::len);
            groups.clone().count() > 1 && lens.eq(groups.clone().map(str::len))
        })
    }
}
