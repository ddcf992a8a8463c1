//! Inserted marks for known templates that do not mark the model's turns themselves.
//!
//! `marks.json` contains no templates, only the BLAKE3 hash of each known one and places in it: a piece of its text,
//! with the insertion between `⟦` and `⟧`, where `«` and `»` stand for the marks. Insertions write marks only, so the
//! text of a conversation is that of the model's own template. `oracle/marks.py` compares texts and masks with TRL's
//! training templates, which have `{% generation %}` tags.

use serde::Deserialize;

/// A known template and its marks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KnownTemplate {
    /// Name of TRL's file for the template.
    pub name: String,
    /// BLAKE3 of its [`plain`] text, in hexadecimal.
    pub hash: String,
    /// Pieces of its text with insertions.
    pub places: Vec<String>,
}

pub(super) fn all() -> Vec<KnownTemplate> {
    // A test checks that this parses, so the fallback is never used.
    serde_json::from_str(include_str!("marks.json")).unwrap_or_default()
}

/// Normalized template for hashing: lines end in `\n`, without trailing white space.
fn plain(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    source.trim_end().to_string()
}

/// BLAKE3 of a template in hexadecimal, independent of its line ends.
pub(super) fn hash(source: &str) -> String {
    blake3::hash(plain(source).as_bytes()).to_hex().to_string()
}

/// Looks up a template among `known`; returns its name and its source with `marks` inserted. Lines of `source` end in
/// `\n`.
pub(super) fn marked<'a>(
    source: &str,
    known: &'a [KnownTemplate],
    marks: [char; 2],
) -> Option<(&'a str, String)> {
    let hash = hash(source);
    let known = known.iter().find(|known| known.hash == hash)?;
    let mut source = source.to_string();
    for place in &known.places {
        let parts = parts(place);
        let piece: String = parts.iter().filter(|(_, new)| !new).map(|(text, _)| *text).collect();
        if piece.is_empty() || !source.contains(&piece) {
            return None;
        }
        let with = |(text, new): &(&str, bool)| match new {
            true => text.replace('«', &marks[0].to_string()).replace('»', &marks[1].to_string()),
            false => (*text).to_string(),
        };
        source = source.replace(&piece, &parts.iter().map(with).collect::<String>());
    }
    Some((known.name.as_str(), source))
}

/// Splits a place into existing text and insertions (`true`).
pub(super) fn parts(place: &str) -> Vec<(&str, bool)> {
    let (mut parts, mut rest) = (Vec::new(), place);
    while let Some((before, after)) = rest.split_once('⟦') {
        let (new, after) = after.split_once('⟧').unwrap_or((after, ""));
        parts.extend([(before, false), (new, true)]);
        rest = after;
    }
    parts.push((rest, false));
    parts
}
