//! Marks of our own for templates that are known: where the model speaks in those that do not say so themselves.
//!
//! `marks.json` has no template. It has the BLAKE3 of each known one, and places in it: a piece of its text that it has, with what is
//! inserted between `⟦` and `⟧`, where `«` and `»` stand for the marks. Whatever is inserted writes marks alone, so the text of a
//! conversation stays what the model's own template makes of it. `oracle/marks.py` holds texts and masks against TRL's templates for
//! training, which have `{% generation %}` tags.

use serde::Deserialize;

/// Where marks are in a template.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    /// What it is called, as TRL names its file.
    pub name: String,
    /// BLAKE3 of its text as [`plain`] has it, in hexadecimal.
    pub hash: String,
    /// Pieces of its text with what is inserted.
    pub places: Vec<String>,
}

/// All that are known.
pub(super) fn all() -> Vec<Known> {
    // A test reads it, so that it is never empty.
    serde_json::from_str(include_str!("marks.json")).unwrap_or_default()
}

/// A template as it is hashed: lines end in `\n`, and no white space is at its end.
fn plain(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    source.trim_end().to_string()
}

/// BLAKE3 of a template, in hexadecimal, however its lines end.
pub(super) fn hash(source: &str) -> String {
    blake3::hash(plain(source).as_bytes()).to_hex().to_string()
}

/// A template's name among `known`, and its source with `marks` in it. `source` has lines that end in `\n`.
pub(super) fn marked<'a>(source: &str, known: &'a [Known], marks: [char; 2]) -> Option<(&'a str, String)> {
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

/// A place in its parts: what the template has, and what is inserted (`true`).
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
