//! Postal addresses, mainly of the United States and Britain, located by their house number.
//!
//! A state with its ZIP code, or a post code of Britain, Canada or Australia, makes nearly anything between it and a
//! number an address. Otherwise there must be a kind of street ("Lane") or a road with a number ("Rt 59"); such an
//! address continues as far as a unit, a town, a state and a country can be recognized. A detection extends to the
//! last part, or there is none: an address is never cut inside.

mod parts;
mod tokens;
mod words;

use regex::{Captures, Regex};

use super::Entity;
use super::detection::{Detection, compile};
use super::digits::Group;
use parts::{coded, street, towns};
use tokens::{Gap, Token, tokens};

/// Compiled patterns.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    /// Text that belongs to the following number.
    lead: Regex,
}

/// Kind of text that belongs to the following number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    /// A post office box, which needs no street.
    Box,
    /// A route or a unit of military mail, which needs no street before a code.
    Route,
    /// A flat or a suite.
    Unit,
    /// A named house.
    House,
}

/// A house number with its lead.
#[derive(Clone, Copy, Debug)]
struct Number {
    /// Start of the number, and start including its lead.
    start: usize,
    begin: usize,
    end: usize,
    lead: Option<Lead>,
}

impl Addresses {
    pub(super) fn new() -> Addresses {
        let boxed = r"P\.? ?O\.? ?Box|Post Office Box";
        let route = r"PSC|CMR|R\.?R\.?|HC|Rural Route";
        let unit = r"Flat|Apt\.?|Apartment|Unit|Suite|Ste\.?|Room";
        let kinds = "House|Cottage|Lodge|Hall|Farm|Mill|Manor|Barn|Building|Tower|Mansions|Villa|Grange";
        let house = format!(r"(?:The )?(?:[A-Z][a-z'’]+ ){{1,2}}(?:{kinds})|The Old [A-Z][a-z]+");
        let lead = format!(
            r"(?:^|[^\w#-])(?:(?P<box>(?:{boxed}) #?)|(?P<route>(?:{route}) #?)|(?P<unit>(?:{unit}) #?)|(?P<house>(?:{house}),[ \n]))$"
        );
        Addresses { lead: compile(&lead) }
    }

    /// Finds addresses; `groups` are the digit groups of `text`.
    pub(super) fn find(&self, text: &str, groups: &[Group], found: &mut Vec<Detection>) {
        let mut done = 0;
        for group in groups {
            // The end of one address cannot begin another.
            if group.start < done {
                continue;
            }
            let number = house_number(text, *group).filter(|(start, end)| goes_on(text, *start, *end));
            let number = number.map(|(start, end)| self.led(text, start, end));
            let place = number.and_then(|number| address(text, number, *group));
            if let Some((start, end)) = place.or_else(|| spelled(text, *group, done)) {
                found.push(Detection { entity: Entity::Address, start, end });
                done = end;
            }
        }
    }

    /// Extends the number from `start` to `end` by its lead.
    fn led(&self, text: &str, start: usize, end: usize) -> Number {
        let alone = Number { start, begin: start, end, lead: None };
        let from = text.floor_char_boundary(start.saturating_sub(40));
        let before = &text[from..start];
        let word = before.strip_suffix([' ', '#', '\n']).unwrap_or_default().trim_end_matches([' ', '#']);
        if !word.ends_with(|c: char| c.is_alphabetic() || c == '.' || c == ',') {
            return alone;
        }
        let Some(captures) = self.lead.captures(before) else { return alone };
        let place = |(name, lead): (&str, Lead), captures: &Captures| {
            captures.name(name).map(|m| Number { begin: from + m.start(), lead: Some(lead), ..alone })
        };
        let kinds =
            [("box", Lead::Box), ("route", Lead::Route), ("unit", Lead::Unit), ("house", Lead::House)];
        kinds.into_iter().find_map(|kind| place(kind, &captures)).unwrap_or(alone)
    }
}

/// Address with this number, of which `group` contains the first digits.
fn address(text: &str, number: Number, group: Group) -> Option<(usize, usize)> {
    let Number { start, begin, end, lead } = number;
    let tokens = tokens(text, end);
    if lead == Some(Lead::Box) {
        let read = || towns(&tokens, 0).map_or(end, |count| tokens[count - 1].end_in(text));
        return Some((begin, coded(&tokens, true).unwrap_or_else(read)));
    }
    let first = tokens.first()?;
    if lead == Some(Lead::Route) {
        return coded(&tokens, true).map(|end| (begin, end));
    }
    let in_unit = lead == Some(Lead::Unit);
    // In tables, digits are followed by digits.
    let house = first.text.starts_with(|c: char| c.is_ascii_digit()) && !first.is_ordinal();
    if !in_unit && (first.gap == Gap::Line || house || first.gap == Gap::Comma && !is_long_part(&tokens)) {
        return None;
    }
    // "5 May 2021"
    let date = words::is_year_lead(first.text) && tokens.get(1).is_some_and(|token| is_year(token.text));
    let before = last_word(&text[..start]);
    let year = is_year(&text[start..end]);
    if date || year && words::is_year_lead(before) {
        return None;
    }
    if let Some(end) = coded(&tokens, false) {
        return Some((begin, end));
    }
    // A number of letters and digits ("N6W23001") is a house number only before a code.
    if start != group.start || year && words::is_perhaps_year_lead(before) {
        return None;
    }
    // "Flat 3, 22 High Street"
    let skipped = usize::from(in_unit && house);
    if tokens.get(skipped)?.gap != Gap::Space {
        return None;
    }
    let count = skipped + street(&tokens[skipped..])?;
    let count = towns(&tokens, count).unwrap_or(count);
    Some((begin, tokens[count - 1].end_in(text)))
}

/// Returns true if the number is a box's, or if a possible name or number follows it.
fn goes_on(text: &str, start: usize, end: usize) -> bool {
    let after = text[end..].trim_start_matches([' ', '\u{a0}', ',', '\r', '\n']).chars().next();
    after.is_some_and(|c| c.is_uppercase() || c.is_ascii_digit() || c == '#')
        || text[..start].trim_end_matches([' ', '#']).ends_with("Box")
}

/// House number that begins with `group`: "221B", "66-4", or "N6W23001" if the group is its first.
fn house_number(text: &str, group: Group) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let compass = |b: &u8| b"NSEW".contains(b);
    let letters = bytes[..group.start].iter().rev().take(2).take_while(|b| compass(b)).count();
    let start = group.start - letters;
    let inner = |b: &&u8| b.is_ascii_alphanumeric() || **b == b'-';
    let end = group.start + bytes[group.start..].iter().take(12).take_while(inner).count();
    let value = &text[group.start..end];
    let (house, more) = value.split_once('-').unwrap_or((value, "1"));
    let grid = letters == 1 && value.bytes().all(|b| b.is_ascii_digit() || compass(&b));
    let usual = letters == 0 && group.len() <= 6 && house.len() <= group.len() + 1;
    let short = more.len() <= 5 && more.starts_with(|c: char| c.is_ascii_digit());
    let lone = !text[..start].ends_with(|c: char| c.is_alphanumeric() || ".,$€£/-_@%+=".contains(c));
    let minutes =
        text[..start].strip_suffix(':').is_some_and(|hours| hours.ends_with(|c: char| c.is_ascii_digit()));
    let lone = lone && !minutes;
    let rest = &text[end..];
    let decimal = rest.starts_with([',', '.']) && rest[1..].starts_with(|c: char| c.is_ascii_digit());
    let open = rest.starts_with([' ', '\u{a0}', ',', '\n', '\r', '.', ';', ')']) || rest.is_empty();
    let proper = (usual || grid) && short && !value.starts_with('0');
    (proper && lone && open && !decimal).then_some((start, end))
}

/// Returns true if the text between the number's comma and the next one is a street name: "10, Downing Street,
/// London".
fn is_long_part(tokens: &[Token]) -> bool {
    let count = 1 + tokens[1..].iter().take_while(|token| token.gap == Gap::Space).count();
    tokens[0].is_word() && count >= 2 && tokens[..count].iter().any(|token| words::is_kind(token.text))
}

fn is_year(number: &str) -> bool {
    number.len() == 4 && number.parse().is_ok_and(|year: u32| (1700..2031).contains(&year))
}

/// Address whose number is a word, located by its ZIP code: "One Microsoft Way, Redmond, WA 98052". It begins after
/// `done`.
fn spelled(text: &str, group: Group, done: usize) -> Option<(usize, usize)> {
    if group.len() != 5 || !words::is_state(last_word(&text[..group.start])) {
        return None;
    }
    let from = text.floor_char_boundary(group.start.saturating_sub(100)).max(done);
    let before = &text[from..group.start];
    let begins = |word: &'static str| {
        before.rmatch_indices(word).find(|(at, _)| !before[..*at].ends_with(char::is_alphanumeric))
    };
    let (at, word) = words::numbers().filter_map(begins).max()?;
    let tokens = tokens(text, from + at + word.len());
    let near = tokens.first().is_some_and(|token| token.gap == Gap::Space && token.is_word());
    let end = coded(&tokens, false).filter(|_| near)?;
    (end >= group.end).then_some((from + at, end))
}

/// Trailing letters of a text, ignoring spaces and commas at its end.
fn last_word(text: &str) -> &str {
    let text = text.trim_end_matches([' ', ',', '\u{a0}']);
    text.rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or_default()
}
