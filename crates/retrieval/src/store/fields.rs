//! Fields of documents as stores have them, so that their filters mean what [`Condition`](crate::Condition) means: every
//! field as a text, and the numbers among them once more as numbers.

use serde_json::{Map, Value};

use crate::filter::field;
use crate::segment::DocumentFacts;

/// Keys that every document has.
const OWN: [&str; 4] = ["path", "kind", "id", "title"];

/// Texts and numbers of a document's fields.
pub(super) fn of(facts: &DocumentFacts) -> (Map<String, Value>, Map<String, Value>) {
    let (mut texts, mut numbers) = (Map::new(), Map::new());
    for key in facts.metadata.keys().map(String::as_str).chain(OWN) {
        let Some(value) = field(facts, key) else { continue };
        match value.as_f64() {
            Some(number) => _ = numbers.insert(key.into(), number.into()),
            None => _ = numbers.remove(key),
        }
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        // PostgreSQL's texts have no zeros.
        texts.insert(key.into(), text.replace('\0', "\u{fffd}").into());
    }
    (texts, numbers)
}
