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
const THEN: [&str; 5] = ["regex", "injection", "secrets", "hidden_text", "personal_data"];

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
            let (key, table) = match *known {
                "personal_data" => ("kinds", format!("kinds = {:?}", options.kinds)),
                "regex" if options.patterns.is_empty() => {
                    return Err(OptionError::new("then", "has `regex`, which needs `patterns`"));
                }
                "regex" => continue,
                _ => ("then", String::new()),
            };
            tables.push((key, known, table));
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

/// Characters between the parts of hexadecimal text that is not written as one.
fn is_gap(c: char) -> bool {
    c.is_whitespace() || ",:;".contains(c)
}

/// Returns whether a part is one of base64 that was broken: it has what words have not, a digit, a sign, or a capital
/// within.
fn is_broken_base64(part: &str) -> bool {
    let bytes = part.as_bytes();
    let signs = |b: &u8| b.is_ascii_digit() || b"+/=_-".contains(b);
    bytes.iter().all(|b| b.is_ascii_alphanumeric() || signs(b))
        && (bytes.iter().any(signs)
            || bytes.windows(2).any(|two| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase()))
}

/// Returns whether a part has pairs of hexadecimal digits alone.
fn is_broken_hex(part: &str) -> bool {
    let digits = part.strip_prefix("0x").unwrap_or(part);
    digits.len() >= 2 && digits.len().is_multiple_of(2) && digits.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Runs of neighbouring parts that belong together, each with its place.
fn broken(
    text: &str,
    from: usize,
    gap: fn(char) -> bool,
    belongs: fn(&str) -> bool,
) -> impl Iterator<Item = Range<usize>> {
    let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
    let (mut at, mut open) = (from, false);
    for part in text[from..].split_inclusive(gap) {
        let bare = part.trim_end_matches(gap);
        if !bare.is_empty() {
            match runs.last_mut().filter(|_| open) {
                Some((run, parts)) if belongs(bare) => (run.end, *parts) = (at + bare.len(), *parts + 1),
                _ if belongs(bare) => runs.push((at..at + bare.len(), 1)),
                _ => {}
            }
            open = belongs(bare);
        }
        at += part.len();
    }
    runs.into_iter().filter(|(_, parts)| *parts > 1).map(|(run, _)| run)
}

/// Parts of a text in base64 or hexadecimal that white space breaks.
fn broken_parts(text: &str, from: usize) -> impl Iterator<Item = DecodedText> {
    let joined = move |span: &Range<usize>, gap: fn(char) -> bool| text[span.clone()].replace(gap, "");
    let base64 = broken(text, from, char::is_whitespace, is_broken_base64).filter_map(move |span| {
        let text = base64(&joined(&span, char::is_whitespace))?;
        Some(DecodedText { span, kind: "base64", text })
    });
    let hex = broken(text, from, is_gap, is_broken_hex).filter_map(move |span| {
        let text = hexadecimal(&joined(&span, is_gap).replace("0x", ""))?;
        Some(DecodedText { span, kind: "hex", text })
    });
    base64.chain(hex)
}

/// Parts of a text from an offset on that are encoded: runs without white space, and those that it breaks.
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
    found.extend(broken_parts(text, from).filter(|part| part.span.len() >= LEAST));
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
    /// Reason and kind of what is found in decoded text, or in what is encoded in it.
    fn condemns(
        &self,
        judged: &RailInput<'_>,
        text: &str,
        depth: usize,
        until: &Until,
    ) -> Result<Option<(Reason, Finding)>, Failure> {
        if !until.wanted() {
            return Err(Failure::TimedOut);
        }
        let inner = RailInput { text, from: 0, whole: true, ..*judged };
        for rail in &self.rails {
            let opinion = rail.judge(&inner, until)?;
            if let Some(found) = opinion.condemned.zip(opinion.findings.into_iter().next()) {
                return Ok(Some(found));
            }
        }
        if depth > 1 {
            for part in decoded(text, 0) {
                let found = self.condemns(judged, &part.text, depth - 1, until)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }
}

impl Rail for Encodings {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        let (mut findings, mut reason) = (Vec::new(), None);
        // A finding has the encoding and the kind of what was encoded.
        let mut found = |encoding: &str, span, why, kind: &str| {
            reason.get_or_insert(why);
            findings.push(Finding::new(span, format!("{encoding}:{kind}")));
        };
        for part in decoded(judged.text, judged.from) {
            if part.span.len() > MOST {
                return Err(Failure::Unreadable("an encoded run is too long".into()));
            }
            if let Some((why, inner)) = self.condemns(judged, &part.text, self.depth, until)? {
                found(part.kind, part.span, why, &inner.kind);
            }
        }
        let turned = rot13(judged.text);
        let turned = RailInput { text: &turned, ..*judged };
        for rail in &self.rails {
            let opinion = rail.judge(&turned, until)?;
            let Some(why) = opinion.condemned else { continue };
            opinion.findings.into_iter().for_each(|it| found("rot13", it.span, why, &it.kind));
        }
        Ok(Opinion::of(reason.unwrap_or(Reason::Clean), crate::spans::united(findings)))
    }

    /// The encoding alone, since what it hides is no text of the answer.
    fn mask(&self, finding: &Finding) -> String {
        let encoding = finding.kind.split(':').next().unwrap_or_default();
        format!("<{}>", encoding.to_uppercase())
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
        // A run at the end, with the parts before it that may belong to it, may become longer and say something else.
        let text = judged.text;
        let last = |gap: fn(char) -> bool, belongs: fn(&str) -> bool| {
            let (mut at, ended) = (text.len(), text.ends_with(gap));
            for part in text[judged.from..].split_inclusive(gap).rev() {
                let bare = part.trim_end_matches(gap);
                if (ended || at < text.len()) && !bare.is_empty() && !belongs(bare) {
                    break;
                }
                at -= part.len();
            }
            at
        };
        let run = last(char::is_whitespace, is_broken_base64).min(last(is_gap, is_broken_hex));
        self.rails.iter().map(|rail| rail.mark(judged, opinion)).min().unwrap_or(0).min(run)
    }
}
