//! YAML as a flat list of entries.

use fathom_guard::import::check_yaml_depth;
use saphyr::{LoadableYamlNode, ScalarOwned, YamlOwned};
use serde_json::{Map, Value};

/// Returns the entries under dotted keys, in the order of the file; lists are values.
pub(super) fn entries(text: &str) -> Result<Vec<(String, Value)>, String> {
    check_yaml_depth(text).map_err(|(line, why)| format!("line {line}: {why}"))?;
    let mut documents = YamlOwned::load_from_str(text)
        .or_else(|error| YamlOwned::load_from_str(&indented(text)).map_err(|_| error))
        .map_err(|error| error.to_string())?;
    if documents.len() != 1 {
        return Err(format!("it has {} documents", documents.len()));
    }
    let Value::Object(top) = json(documents.remove(0)) else { return Err("it is no mapping".into()) };
    let mut flat = Vec::new();
    flatten("", top, &mut flat);
    interpolate(&mut flat);
    Ok(flat)
}

/// Returns the text with the contents of brackets indented further than any block, which the standard requires and
/// Python does not.
fn indented(text: &str) -> String {
    let mut depth = 0usize;
    let mut lines = Vec::new();
    for line in text.lines() {
        let inside = if depth > 0 { " ".repeat(64) } else { String::new() };
        lines.push(inside + line);
        let (mut quote, mut before) = (None, ' ');
        for char in line.chars() {
            match (quote, char) {
                (None, '#') if before.is_whitespace() => break,
                (None, '"' | '\'') => quote = Some(char),
                (Some(open), _) if open == char => quote = None,
                (None, '[' | '{') => depth += 1,
                (None, ']' | '}') => depth = depth.saturating_sub(1),
                _ => {}
            }
            before = char;
        }
    }
    lines.join("\n")
}

/// Replaces OmegaConf's references to other keys, `${key}`; unknown ones stay.
fn interpolate(flat: &mut [(String, Value)]) {
    for _ in 0..4 {
        let known = flat.to_vec();
        for (_, value) in flat.iter_mut() {
            let Value::String(text) = value else { continue };
            let Some((before, rest)) = text.split_once("${") else { continue };
            let Some((key, after)) = rest.split_once('}') else { continue };
            match known.iter().find(|(name, _)| name == key).map(|(_, value)| value) {
                Some(Value::String(found)) => *text = format!("{before}{found}{after}"),
                Some(found) if before.is_empty() && after.is_empty() => *value = found.clone(),
                _ => {}
            }
        }
    }
}

fn flatten(prefix: &str, map: Map<String, Value>, flat: &mut Vec<(String, Value)>) {
    for (key, value) in map {
        let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(map) if !map.is_empty() => flatten(&path, map, flat),
            value => flat.push((path, value)),
        }
    }
}

fn json(node: YamlOwned) -> Value {
    match node {
        YamlOwned::Value(ScalarOwned::Boolean(x)) => x.into(),
        YamlOwned::Value(ScalarOwned::Integer(x)) => x.into(),
        YamlOwned::Value(ScalarOwned::FloatingPoint(x)) => x.into_inner().into(),
        // YAML 1.1, which Python reads, treats these words as booleans.
        YamlOwned::Value(ScalarOwned::String(x)) => match x.as_str() {
            "yes" | "on" | "True" => true.into(),
            "no" | "off" | "False" => false.into(),
            _ => x.into(),
        },
        YamlOwned::Sequence(list) => list.into_iter().map(json).collect(),
        YamlOwned::Mapping(map) => {
            let name = |key: YamlOwned| match json(key) {
                Value::String(key) => key,
                other => other.to_string(),
            };
            Value::Object(map.into_iter().map(|(key, value)| (name(key), json(value))).collect())
        }
        YamlOwned::Tagged(_, inner) => json(*inner),
        _ => Value::Null,
    }
}

/// Returns whether a value is off, empty or null.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_too_deep_is_refused_before_it_is_parsed() {
        let keys: String = (0..30).map(|depth| format!("{}?\n", " ".repeat(depth))).collect();
        let maps: String = (0..3000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        for text in ["? ".repeat(30), "- ".repeat(8000), "[".repeat(8000), "{? ".repeat(30), keys, maps] {
            let error = entries(&text).unwrap_err();
            assert!(error.contains("too deep") || error.contains("too far"), "{error}");
        }
        let found = entries("a: [1, {b: 2}]\nc:\n- - x\n").unwrap();
        assert_eq!(found.len(), 2);
    }
}
