//! JSON in its original spelling. Numbers beyond `f64`, such as ids of twenty-five digits, keep all digits, and the
//! text around them is unchanged.

use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

/// The value at the beginning of a text, and the rest; `None` if there is no JSON.
pub fn first(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    text.split_at_checked(values.byte_offset())
}

/// The members of an object, in order; `None` for anything else.
pub fn members(object: &str) -> Option<Vec<(String, &str)>> {
    let mut rest = object.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let mut members = Vec::new();
    while !rest.is_empty() {
        let (name, after) = first(rest)?;
        let (value, after) = first(after.trim_start().strip_prefix(':')?)?;
        members.push((serde_json::from_str(name).ok()?, value));
        rest = after.trim_start().trim_start_matches(',');
    }
    Some(members)
}

/// The elements of an array; `None` for anything else.
pub fn elements(array: &str) -> Option<Vec<&str>> {
    let mut rest = array.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut elements = Vec::new();
    while !rest.is_empty() {
        let (value, after) = first(rest)?;
        elements.push(value);
        rest = after.trim_start().trim_start_matches(',');
    }
    Some(elements)
}

/// A text as JSON: itself if it is JSON, else a string.
pub fn or_string(text: &str) -> String {
    match first(text) {
        Some((value, rest)) if rest.trim().is_empty() => value.to_string(),
        _ => Value::from(text).to_string(),
    }
}

/// The text of an object with one more member, given as JSON.
pub fn with(object: &Value, name: &str, json: &str) -> String {
    let mut text = object.to_string();
    text.pop();
    let comma = if text.len() > 1 { "," } else { "" };
    text + comma + &Value::from(name).to_string() + ":" + json + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_as_they_are_written() {
        assert_eq!(first(" [1, 2]; 3"), Some(("[1, 2]", "; 3")));
        assert_eq!(first("1e400 x"), Some(("1e400", " x")));
        assert_eq!((first("{"), first(""), first("nul")), (None, None, None));
        let object = r#" {"a" : 12345678901234567890123, "\u0062": [1.10, "}"] , "a": "\ud83d"} "#;
        let found = members(object).unwrap();
        let want = [("a", "12345678901234567890123"), ("b", r#"[1.10, "}"]"#), ("a", r#""\ud83d""#)];
        assert!(found.iter().map(|(name, value)| (name.as_str(), *value)).eq(want), "{found:?}");
        assert_eq!(elements("[ {} , 1E2,\n[] ]").unwrap(), ["{}", "1E2", "[]"]);
        assert_eq!((members("[]"), elements("{}"), members("{}")), (None, None, Some(Vec::new())));
        assert_eq!(
            (or_string(" {} "), or_string("{\"a\""), or_string("")),
            ("{}".into(), r#""{\"a\"""#.into(), r#""""#.into())
        );
        assert_eq!(with(&serde_json::json!({"a": 1}), "b", "-0"), r#"{"a":1,"b":-0}"#);
        assert_eq!(with(&serde_json::json!({}), "b", "2"), r#"{"b":2}"#);
    }
}
