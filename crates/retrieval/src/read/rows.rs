//! JSON lines: a document each. `text`, `contents`, `content` or `body` is its text, `title` its title, `_id`, `id` or
//! `docid` its name; its other plain fields and those of `metadata` are for filters.

use serde_json::{Map, Value};

use super::document::{Document, FileDocuments, placed};
use crate::chunk;

/// Documents of a file's rows.
pub(super) fn read(text: &str, most: usize) -> FileDocuments {
    let mut reading = FileDocuments::default();
    let mut start = 0u64;
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let place = (start, u32::try_from(at + 1).unwrap_or(u32::MAX), line.trim_end().len() as u64);
        start += line.len() as u64;
        if line.trim().is_empty() {
            continue;
        }
        match row(line, most, place) {
            Ok(document) => reading.documents.push(document),
            Err(why) => {
                reading.skipped_rows += 1;
                reading.first_skipped.get_or_insert_with(|| format!("line {}: {why}", at + 1));
            }
        }
    }
    reading
}

/// A row as a document. Its passages have the row's place, since their text is escaped there.
fn row(line: &str, most: usize, (start, number, bytes): (u64, u32, u64)) -> Result<Document, String> {
    let row: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| format!("not a JSON object: {error}"))?;
    let mut document = Document::default();
    let mut body = None;
    for (key, value) in row {
        match (key.as_str(), value) {
            ("text" | "contents" | "content" | "body", Value::String(text)) if body.is_none() => {
                body = Some(text)
            }
            ("title", Value::String(title)) => document.title = title,
            ("_id" | "id" | "docid", Value::String(id)) => document.id = id,
            ("_id" | "id" | "docid", Value::Number(id)) => document.id = id.to_string(),
            ("metadata", Value::Object(fields)) => {
                document.metadata.extend(fields.into_iter().filter(|(_, value)| is_plain(value)));
            }
            (_, value) if is_plain(&value) => _ = document.metadata.insert(key, value),
            _ => {}
        }
    }
    let body = body.filter(|body| !body.trim().is_empty());
    let body = body.ok_or("it has no text (a field `text`, `contents`, `content` or `body`)")?;
    document.passages = placed(&body, chunk::plain(&body, most, &[]), (0, 1));
    for passage in &mut document.passages {
        (passage.bytes, passage.lines) = ([start, start + bytes], [number; 2]);
    }
    Ok(document)
}

fn is_plain(value: &Value) -> bool {
    matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_documents_with_fields_and_places() {
        let text = "{\"_id\": \"d1\", \"title\": \"T\", \"text\": \"one\", \"year\": 1999, \"metadata\": {\"url\": \"u\"}}\n\nnot json\n{\"id\": 7, \"body\": \"two\"}\n{\"id\": 8}\n";
        let found = read(text, 100);
        assert_eq!(found.documents.len(), 2);
        assert_eq!((found.skipped_rows, found.documents[1].id.as_str()), (2, "7"));
        assert!(found.first_skipped.unwrap().starts_with("line 3: not a JSON object"));
        let [one, two] = [0, 1].map(|at| &found.documents[at]);
        assert_eq!((one.id.as_str(), one.title.as_str(), &one.metadata["year"]), ("d1", "T", &1999.into()));
        assert_eq!(one.metadata["url"], "u");
        let [from, to] = two.passages[0].bytes.map(|at| at as usize);
        assert_eq!((&text[from..to], two.passages[0].lines), ("{\"id\": 7, \"body\": \"two\"}", [4, 4]));
    }
}
