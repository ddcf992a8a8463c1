//! Untrusted JSON: no duplicate keys, bounded depth and size, and Python's bare `Infinity`.

use std::fmt;
use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{Error, Result};

/// Largest JSON file that is read; the index of a million tensors is smaller.
pub(crate) const MAX_BYTES: u64 = 100 << 20;

/// Reads and parses a JSON object; see [`parse_object`].
pub(crate) fn read_object(file: &Path) -> Result<Map<String, Value>> {
    let length = std::fs::metadata(file).map_err(Error::io("read", file))?.len();
    if length > MAX_BYTES {
        return Err(Error::file(
            file,
            format!("{length} bytes are too many for a JSON file (at most 100 MiB)"),
        ));
    }
    let bytes = std::fs::read(file).map_err(Error::io("read", file))?;
    parse_object(file, &bytes)
}

/// Parses a JSON object. Python's bare `Infinity`, `-Infinity` and `NaN` become `{"__float__": "Infinity"}`, as
/// Transformers 5 writes them. `file` is for messages.
///
/// # Errors
/// Names the file and the line and column of what is not JSON, and keys that appear twice.
pub(crate) fn parse_object(file: &Path, bytes: &[u8]) -> Result<Map<String, Value>> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Error::file(file, format!("not UTF-8 at byte {}", error.valid_up_to())))?;
    let text = spell_floats(text);
    match serde_json::from_str::<Strict>(&text) {
        Ok(Strict(Value::Object(map))) => Ok(map),
        Ok(_) => Err(Error::file(file, "a JSON object was expected")),
        Err(error) => Err(Error::file(file, format!("not valid JSON: {error}"))),
    }
}

/// Replaces Python's bare non-finite numbers outside strings.
fn spell_floats(text: &str) -> String {
    if !text.contains("Infinity") && !text.contains("NaN") {
        return text.to_string();
    }
    let (mut out, mut rest, mut in_string) = (String::with_capacity(text.len()), text, false);
    while let Some(first) = rest.chars().next() {
        let bare = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word));
        match (in_string, first, bare) {
            (false, _, Some(word)) => {
                out.push_str(&format!("{{\"__float__\":\"{word}\"}}"));
                rest = &rest[word.len()..];
                continue;
            }
            (true, '\\', _) => {
                let escaped = rest.chars().nth(1).map_or(0, char::len_utf8);
                out.push_str(&rest[..1 + escaped]);
                rest = &rest[1 + escaped..];
                continue;
            }
            (_, '"', _) => in_string = !in_string,
            _ => {}
        }
        out.push(first);
        rest = &rest[first.len_utf8()..];
    }
    out
}

/// A JSON value without duplicate keys, of which the last would silently win.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Strict, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> std::result::Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(Value::String(value.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(value)) = seq.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let Strict(value) = map.next_value()?;
            if object.contains_key(&key) {
                return Err(de::Error::custom(format!("key `{key}` appears twice")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Map<String, Value>> {
        parse_object(Path::new("config.json"), text.as_bytes())
    }

    #[test]
    fn bare_infinity_is_the_new_spelling() {
        let old = parse(r#"{"a": [0.0, Infinity], "b": "Infinity \" NaN", "c": -Infinity}"#).unwrap();
        let new = r#"{"a": [0.0, {"__float__": "Infinity"}], "b": "Infinity \" NaN", "c": {"__float__": "-Infinity"}}"#;
        assert_eq!(old, parse(new).unwrap());
    }

    #[test]
    fn bad_json_is_named() {
        let cases = [
            (r#"{"a": 1, "a": 2}"#, "key `a` appears twice"),
            (r#"{"a": 1"#, "line 1"),
            (r#"[1]"#, "object was expected"),
            ("\"\\", "not valid JSON"),
        ];
        for (text, expected) in cases {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains("config.json") && message.contains(expected), "{message}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(1 << 20));
        assert!(parse(&deep).unwrap_err().to_string().contains("recursion"));
        assert!(parse_object(Path::new("x"), b"{\"\xff\"}").unwrap_err().to_string().contains("byte 2"));
    }
}
