//! `hidden_text`: characters that a reader does not see or takes for others: tags (U+E0000 to U+E007F), controls of
//! direction, zero-width characters, and letters of other scripts within words. Joiners are kept where scripts and
//! emoji need them.

use serde::Deserialize;

use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Finding, Reason};

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Kinds that are looked for; all but `homoglyph` by default, which would change names and words that mix scripts.
    #[serde(default = "kinds")]
    #[serde(deserialize_with = "crate::registry::list")]
    kinds: Vec<Kind>,
}

/// A kind of hidden text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Tag characters, which spell text that is never shown.
    Tag,
    /// Overrides, embeddings and isolates of direction.
    Bidi,
    /// Characters without width.
    ZeroWidth,
    /// Private or unassigned characters and control codes.
    Control,
    /// Letters that look like Latin ones within Latin words.
    Homoglyph,
}

fn kinds() -> Vec<Kind> {
    vec![Kind::Tag, Kind::Bidi, Kind::ZeroWidth, Kind::Control]
}

/// The rail.
pub struct HiddenText {
    kinds: Vec<Kind>,
}

impl RailKind for HiddenText {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "hidden_text",
        summary: "characters that a reader does not see or takes for others",
        directions: &Direction::ALL,
        actions: &[Action::Omit, Action::Block, Action::Mask, Action::Flag],
        cost: Cost::Text,
    };

    fn build(options: Options, _: &Setting, _: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        if options.kinds.is_empty() {
            return Err(OptionError::new("kinds", "is empty; name at least one kind"));
        }
        Ok(Box::new(HiddenText { kinds: options.kinds }))
    }
}

/// Letters of scripts in which joiners change the shape of words.
fn joins(c: char) -> bool {
    matches!(c,
        '\u{600}'..='\u{8ff}'       // Arabic, Syriac, Thaana, N'Ko
        | '\u{900}'..='\u{dff}'     // scripts of India
        | '\u{e00}'..='\u{eff}'     // Thai, Lao
        | '\u{1000}'..='\u{109f}'   // Myanmar
        | '\u{1780}'..='\u{17ff}'   // Khmer
        | '\u{1800}'..='\u{18af}'   // Mongolian
        | '\u{fb50}'..='\u{fdff}'
        | '\u{fe70}'..='\u{feff}')
}

/// Symbols that joiners combine into one picture, with their modifiers.
fn is_picture(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}' | '\u{fe0f}' | '\u{200d}')
}

/// The Latin letter that a letter of another script looks like.
fn latin(c: char) -> Option<char> {
    const ALIKE: [(&str, &str); 2] = [
        ("аеорсухіјѕԁһԛԝАВЕКМНОРСТУХІЈЅ", "aeopcyxijsdhqwABEKMHOPCTYXIJS"),
        ("οαιυνρΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "oaiuvpABEZHIKMNOPTYX"),
    ];
    let from = |first: char, at: u32| char::from_u32(u32::from(first) + at);
    match c {
        '\u{370}'..='\u{52f}' => {
            let pairs = |(other, latin): (&'static str, &'static str)| other.chars().zip(latin.chars());
            ALIKE.into_iter().flat_map(pairs).find(|(other, _)| *other == c).map(|(_, latin)| latin)
        }
        '\u{ff21}'..='\u{ff5a}' => from('A', c as u32 - 0xff21),
        // Alphabets of mathematics, each of 26 capital and 26 small letters, and then digits.
        '\u{1d400}'..='\u{1d6a3}' => match (c as u32 - 0x1d400) % 52 {
            at @ 0..26 => from('A', at),
            at => from('a', at - 26),
        },
        '\u{1d7ce}'..='\u{1d7ff}' => from('0', (c as u32 - 0x1d7ce) % 10),
        _ => None,
    }
}

impl HiddenText {
    fn kind(c: char, before: Option<char>, after: Option<char>) -> Option<Kind> {
        match c {
            '\u{e0000}'..='\u{e007f}' => Some(Kind::Tag),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Some(Kind::Bidi),
            '\u{200c}' | '\u{200d}'
                if before.is_some_and(|c| joins(c) || is_picture(c))
                    && (after.is_none() || after.is_some_and(|c| joins(c) || is_picture(c))) =>
            {
                None
            }
            '\u{200e}' | '\u{200f}' | '\u{61c}' => None,
            '\u{200b}'..='\u{200d}'
            | '\u{2060}'..='\u{2064}'
            | '\u{feff}'
            | '\u{ad}'
            | '\u{180e}'
            | '\u{34f}' => Some(Kind::ZeroWidth),
            '\t' | '\n' | '\r' => None,
            '\u{0}'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{e000}'..='\u{f8ff}'
            | '\u{e0100}'..='\u{e01ef}' => Some(Kind::Control),
            '\u{f0000}'..='\u{10ffff}' | '\u{fff9}'..='\u{fffb}' => Some(Kind::Control),
            c if (before.is_some_and(is_latin) || after.is_some_and(is_latin)) && latin(c).is_some() => {
                Some(Kind::Homoglyph)
            }
            _ => None,
        }
    }
}

fn is_latin(c: char) -> bool {
    c.is_ascii_alphabetic()
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Tag => "tag",
        Kind::Bidi => "bidi",
        Kind::ZeroWidth => "zero_width",
        Kind::Control => "control",
        Kind::Homoglyph => "homoglyph",
    }
}

impl Rail for HiddenText {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let text = judged.text;
        let open = &text[judged.from..];
        // Nothing of this can occur in printable ASCII.
        if open.bytes().all(|b| matches!(b, b' '..=b'~' | b'\n' | b'\r' | b'\t')) && judged.from == 0 {
            return Ok(Opinion::clean());
        }
        let mut findings: Vec<Finding> = Vec::new();
        let mut before = text[..judged.from].chars().next_back();
        // Tags that may follow: flags of regions of a country are spelled with up to six behind a black flag.
        let mut flag_tags = 0;
        for (at, c) in open.char_indices() {
            let start = judged.from + at;
            let end = start + c.len_utf8();
            let plain = matches!(c, ' '..='~' | '\n' | '\r' | '\t');
            let is_tag = matches!(c, '\u{e0000}'..='\u{e007f}');
            let is_flag = is_tag && flag_tags > 0;
            flag_tags = match c {
                '\u{1f3f4}' => 6,
                _ if is_flag => flag_tags - 1,
                _ => 0,
            };
            let after = text[end..].chars().next();
            let kind = if plain || is_flag { None } else { HiddenText::kind(c, before, after) };
            if let Some(kind) = kind.filter(|kind| self.kinds.contains(kind)) {
                match findings.last_mut() {
                    Some(last) if last.span.end == start && last.kind == name(kind) => last.span.end = end,
                    _ => findings.push(Finding::new(start..end, name(kind))),
                }
            }
            before = Some(c);
        }
        Ok(Opinion::of(Reason::HiddenText, findings))
    }

    /// A letter of another script becomes the Latin one: the word would lose it.
    fn omit(&self, text: &str, finding: &Finding) -> String {
        if finding.kind == name(Kind::Homoglyph) {
            text[finding.span.clone()].chars().filter_map(latin).collect()
        } else {
            String::new()
        }
    }

    fn horizon(&self) -> Horizon {
        // A joiner is judged by its neighbours, a tag by the flag before it.
        Horizon::Bytes(40)
    }

    fn mark(&self, judged: &RailInput<'_>, _: &Opinion) -> usize {
        // A flag and its tags are one grapheme, in which no mark lies.
        judged.text.char_indices().next_back().map_or(0, |(last, _)| last)
    }
}
