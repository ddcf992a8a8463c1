//! `encodings`: base64, hexadecimal, percent, escaped and ROT13 text, decoded to a bounded depth and then judged by
//! other rails. A finding is the encoded run; of ROT13, the part of the text itself.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{self, BuildError, OptionError, RailKind};
use crate::verdict::{Direction, Finding, Reason};

/// Characters of the shortest run that is decoded.
const LEAST: usize = 12;
/// Bytes of the longest run that is decoded; longer ones fail.
const MOST: usize = 1 << 20;
/// Kinds of rails that may judge decoded text.
const THEN: [&str; 4] = ["injection", "secrets", "hidden_text", "personal_data"];

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Rails that judge decoded text, with their default options.
    #[serde(default = "then")]
    #[serde(deserialize_with = "crate::registry::list")]
    then: Vec<String>,
    /// Patterns that decoded text must not match.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    patterns: Vec<String>,
    /// Kinds of personal data that decoded text must not contain.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    kinds: Vec<String>,
    /// Encodings within encodings that are decoded.
    #[serde(default = "depth")]
    depth: usize,
}

fn then() -> Vec<String> {
    vec!["injection".into(), "secrets".into()]
}

fn depth() -> usize {
    3
}

/// The rail.
pub struct Encodings {
    rails: Vec<Box<dyn Rail>>,
    depth: usize,
}

impl RailKind for Encodings {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "encodings",
        summary: "base64, hexadecimal, percent, escaped and ROT13 text, decoded and judged by other rails",
        directions: &Direction::ALL,
        actions: &[Action::Block, Action::Omit, Action::Mask, Action::Flag],
        cost: Cost::Text,
    };

    fn build(options: Options, setting: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        if options.depth == 0 || options.depth > 8 {
            return Err(OptionError::new("depth", "should be from 1 to 8"));
        }
        let mut tables: Vec<(&'static str, &'static str, String)> = Vec::new();
        for name in &options.then {
            let Some(known) = THEN.iter().find(|known| *known == name) else {
                let hint = fathom_base::recipe::suggest_name(name, &THEN, "there are");
                return Err(OptionError::new("then", format!("`{name}` cannot judge decoded text; {hint}")));
            };
            let table = match *known {
                "personal_data" => format!("kinds = {:?}", options.kinds),
                _ => String::new(),
            };
            tables.push((if *known == "personal_data" { "kinds" } else { "then" }, known, table));
        }
        if !options.patterns.is_empty() {
            let patterns = toml::Value::from(options.patterns.clone());
            tables.push(("patterns", "regex", format!("patterns = {patterns}")));
        }
        if tables.is_empty() {
            return Err(OptionError::new("then", "is empty, and there are no patterns; name a rail"));
        }
        let mut rails = Vec::with_capacity(tables.len());
        for (key, name, table) in tables {
            let refused = |message: String| OptionError::new(key, format!("{name}: {message}"));
            let entry = registry::find(name).ok_or_else(|| refused("no such rail".into()))?;
            let table = toml::de::DeTable::parse(&table).map_err(|error| refused(error.to_string()))?;
            let rail = (entry.build)(table, setting, needs);
            rails.push(rail.map_err(|error| match error {
                BuildError::Options(error) => refused(error.to_string()),
                BuildError::Refused(inner) => refused(format!("{}: {}", inner.key, inner.message)),
            })?);
        }
        Ok(Box::new(Encodings { rails, depth: options.depth }))
    }
}

/// An encoded part of a text with what it says.
struct DecodedText {
    span: Range<usize>,
    kind: &'static str,
    text: String,
}

fn is_text(bytes: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(bytes).ok()?;
    let readable = text.chars().filter(|c| !c.is_control() || c.is_whitespace()).count();
    (text.len() >= 4 && readable * 10 >= text.chars().count() * 9).then_some(text)
}

fn base64(run: &str) -> Option<String> {
    let run = run.trim_end_matches('=');
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true);
    let alphabet =
        if run.contains(['-', '_']) { base64::alphabet::URL_SAFE } else { base64::alphabet::STANDARD };
    let run = &run[..run.len() - usize::from(run.len() % 4 == 1)];
    is_text(GeneralPurpose::new(&alphabet, config).decode(run).ok()?)
}

fn hexadecimal(run: &str) -> Option<String> {
    let digits: Vec<u8> = run.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    is_text(digits.chunks_exact(2).map(byte).collect::<Option<Vec<u8>>>()?)
}

/// Text with `%41`, `\x41`, `\u0041`, `&#65;` and `&#x41;` replaced; `None` if there are fewer than two.
fn escaped(run: &str) -> Option<String> {
    let mut out: Vec<u8> = Vec::with_capacity(run.len());
    let (mut rest, mut count) = (run, 0);
    while let Some(c) = rest.chars().next() {
        let found = [("%", 2), ("\\x", 2), ("\\u", 4)].into_iter().find_map(|(mark, digits)| {
            let hex = rest.strip_prefix(mark)?.get(..digits)?;
            Some((u32::from_str_radix(hex, 16).ok()?, mark.len() + digits, mark == "\\u"))
        });
        let entity = || {
            let inner = rest.strip_prefix("&#")?;
            let end = inner.get(..8.min(inner.len())).unwrap_or(inner).find(';')?;
            let digits = &inner[..end];
            let code = match digits.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => digits.parse().ok()?,
            };
            Some((code, end + 3, true))
        };
        match found.or_else(entity) {
            Some((code, len, is_char)) => {
                match char::from_u32(code).filter(|_| is_char) {
                    Some(c) => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
                    None => out.push(code as u8),
                }
                rest = &rest[len..];
                count += 1;
            }
            None => {
                out.extend(&rest.as_bytes()[..c.len_utf8()]);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    (count >= 2).then(|| is_text(out)).flatten()
}

/// Parts of a text from an offset on that are encoded. Runs have no white space in them.
fn decoded(text: &str, from: usize) -> Vec<DecodedText> {
    let mut found = Vec::new();
    let mut at = from;
    for run in text[from..].split_inclusive(char::is_whitespace) {
        let bare = run.trim_end();
        if bare.len() >= 6
            && bare.contains(['%', '\\', '&'])
            && let Some(text) = escaped(bare)
        {
            found.push(DecodedText { span: at..at + bare.len(), kind: "escaped", text });
        } else if bare.len() >= LEAST {
            encoded_parts(bare, at, &mut found);
        }
        at += run.len();
    }
    found
}

/// Parts of a run in base64 or hexadecimal.
fn encoded_parts(run: &str, at: usize, found: &mut Vec<DecodedText>) {
    let inside = |c: char| c.is_ascii_alphanumeric() || "+/_-=".contains(c);
    let mut begin = 0;
    for part in run.split_inclusive(|c| !inside(c)) {
        let bare = part.trim_matches(|c| !inside(c));
        if bare.len() >= LEAST {
            let start = at + begin + (part.len() - part.trim_start_matches(|c| !inside(c)).len());
            let decoded = if bare.bytes().all(|b| b.is_ascii_hexdigit()) {
                hexadecimal(bare)
                    .map(|text| ("hex", text))
                    .or_else(|| base64(bare).map(|text| ("base64", text)))
            } else {
                base64(bare).map(|text| ("base64", text))
            };
            if let Some((kind, text)) = decoded {
                found.push(DecodedText { span: start..start + bare.len(), kind, text });
            }
        }
        begin += part.len();
    }
}

fn rot13(text: &str) -> String {
    let turned = |c: char| match c {
        'a'..='z' => ((c as u8 - b'a' + 13) % 26 + b'a') as char,
        'A'..='Z' => ((c as u8 - b'A' + 13) % 26 + b'A') as char,
        other => other,
    };
    text.chars().map(turned).collect()
}

impl Encodings {
    /// Returns whether decoded text, or what is encoded in it, is condemned.
    fn condemns(
        &self,
        judged: &RailInput<'_>,
        text: &str,
        depth: usize,
        until: &Until,
    ) -> Result<bool, Failure> {
        if !until.wanted() {
            return Err(Failure::TimedOut);
        }
        let inner = RailInput { text, from: 0, whole: true, ..*judged };
        for rail in &self.rails {
            if rail.judge(&inner, until)?.condemned.is_some() {
                return Ok(true);
            }
        }
        if depth > 1 {
            for part in decoded(text, 0) {
                if self.condemns(judged, &part.text, depth - 1, until)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Rail for Encodings {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        let mut findings = Vec::new();
        for part in decoded(judged.text, judged.from) {
            if part.span.len() > MOST {
                return Err(Failure::Unreadable("an encoded run is too long".into()));
            }
            if self.condemns(judged, &part.text, self.depth, until)? {
                findings.push(Finding::new(part.span, part.kind));
            }
        }
        let turned = rot13(judged.text);
        let turned = RailInput { text: &turned, ..*judged };
        for rail in &self.rails {
            let opinion = rail.judge(&turned, until)?;
            if opinion.condemned.is_some() {
                findings.extend(opinion.findings.into_iter().map(|it| Finding::new(it.span, "rot13")));
            }
        }
        Ok(Opinion::of(Reason::Injection, crate::spans::united(findings)))
    }

    fn horizon(&self) -> Horizon {
        let inner = self.rails.iter().map(|rail| rail.horizon());
        let longest = inner.map(|horizon| match horizon {
            Horizon::Bytes(bytes) => Some(bytes),
            Horizon::Whole => None,
        });
        longest
            .reduce(|a, b| Some(a?.max(b?)))
            .flatten()
            .map_or(Horizon::Whole, |it| Horizon::Bytes(it.max(LEAST)))
    }

    fn mark(&self, judged: &RailInput<'_>, opinion: &Opinion) -> usize {
        // An unbroken run at the end may become longer, and then say something else.
        let text = judged.text;
        let run = text.len() - text.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let inner = self.rails.iter().map(|rail| rail.mark(judged, opinion)).min().unwrap_or(0);
        inner.min(text.floor_char_boundary(text.len() - run))
    }
}
